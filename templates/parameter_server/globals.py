coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None  # None without a cluster
