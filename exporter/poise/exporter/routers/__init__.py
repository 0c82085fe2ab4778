"""Routers before engines: found in /proc or named, asked for whom they send to, joined with the engines of this node."""
