coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None  # of a cluster's workers
signals: list[threading.Timer] = []  # one, once SIGTERM or Ctrl-C has come: see request_stop
