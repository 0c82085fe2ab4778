"""The vLLM engines of this node: found in /proc or configured, their pages read in the words of the metric contract."""
