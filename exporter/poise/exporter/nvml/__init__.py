"""The NVIDIA driver, read through NVML: one file per collector, one thread per card."""
