# With autotuning, the deletion of an iterator waits for a thread that sleeps. That may take as long
# as the iterator has existed.
INPUT_OPTIONS = tf.data.Options()
INPUT_OPTIONS.autotune.enabled = False
