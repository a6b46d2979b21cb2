coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None  # of a cluster's workers
signals: list[int] = []  # SIGTERM and Ctrl-C, of which the chief hears between steps
