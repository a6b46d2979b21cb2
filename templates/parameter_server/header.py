# /// script
# requires-python = ">=3.10"
# dependencies = ["tensorflow>=2.18", "keras>=3.10", "tensorboard>=2.18", "{{ 'keras-hub>=0.21' if 'text' in cookiecutter.task else 'scikit-learn>=1.4' }}"]
# ///
"""{{ cookiecutter.project_name | replace('\\', '\\\\') | replace('"', '\\"') }}: weights on parameter servers, workers that don't wait.

    uv run train.py                     one process: train, or go on from the last checkpoint
    uv run python launch/local.py --ps 2 --workers 2     four processes and a chief, to rehearse
    uv run train.py --mode evaluate     the best checkpoint of the run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be the chief, a worker or a server: README.md

Edit section 3, and maybe 4, at each TODO(you). From cookiecutter-tf-distribute {{ cookiecutter._version }}.
"""

# {% if cookiecutter.task == "text_classification" %}
import argparse
import concurrent.futures
import contextlib
import datetime
import functools
import gc
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

# {% else %}
import argparse
import concurrent.futures
import contextlib
import datetime
import gc
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

# {% endif %}
os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json prefers
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # 0 shows what TensorFlow tells of itself
gc.set_threshold(50_000)  # by Python's own 700, a sixth of the start is spent on finding no garbage
stderr = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its import tells, whatever the level (abseil#1957)
try:
    import keras
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)
