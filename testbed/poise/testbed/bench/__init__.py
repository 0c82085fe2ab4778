"""Measured load: profiles, `vllm bench serve` as the client, and runs that are saved with everything that explains their figures."""
