# {% extends "workers.py" %}
def read_tf_config():
    if True:
        # {% block evaluator %}
        if job == "evaluator":  # alone, beside the cluster
            args.mode = "continuous_evaluate"
            return 0, ["localhost"]
        cluster = {name: x for name, x in cluster.items() if name != "evaluator"}
        # {% endblock %}
