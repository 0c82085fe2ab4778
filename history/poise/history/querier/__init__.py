"""The one door to series: the embedded store, or a Prometheus. Who asks never knows which."""
