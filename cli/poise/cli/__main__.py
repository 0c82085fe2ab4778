"""`python -m poise.cli` is the `poise` command."""

import sys

from poise.cli.main import main

sys.exit(main())
