"""What a person reads when an address cannot be listened on: the same words for every server of Poise. Opens no socket."""

from __future__ import annotations

import errno


def refused(where: str, error: Exception, program: str) -> str:
    """One line for `error`, which came of listening on `where` (HOST:PORT); `program` is the command that perhaps runs there already."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        why = f"the port is taken, perhaps by another `{program}`. Choose another with --listen HOST:PORT."
    elif number == errno.EACCES:
        why = "no permission for this port. Choose one above 1023 with --listen HOST:PORT."
    else:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        why = f"{words}. Choose another address with --listen HOST:PORT."
    return f"cannot listen on {where}: {why}"
