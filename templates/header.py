# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "tensorflow>=2.18",
#     "keras>=3.10",
#     "tensorboard>=2.18",
#     "{{ 'keras-hub>=0.21' if 'text' in cookiecutter.task else 'scikit-learn>=1.4' }}",
# ]
# ///

# Project: {{ cookiecutter.project_name }}
"""Trains a model on one device, on many, or on many machines: the same job, the same numbers.

    uv run train.py                     train, or go on where the last checkpoint stands
    uv run train.py --smoke             a few steps of everything: does it work?
    uv run train.py --replicas 4        rehearse four replicas on this machine's CPU
    uv run train.py --mode evaluate     the best checkpoint of a run, on the test split
    TF_CONFIG='{"cluster": ...}' uv run train.py     be one worker of several: see README.md

`python train.py` does the same where the packages above are installed. Edit section 3, and
section 4 if your step is another; each place is marked TODO(you).
"""

import argparse
import ast
import atexit
import concurrent.futures
import contextlib
import difflib
import functools
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # until `main` listens: no traceback of the imports
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(143))  # NumPy would catch an exception

os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json prefers
stderr = os.dup(2)
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
    # TensorFlow's import writes to stderr whatever the level (abseil-cpp#1957). 0 shows it all.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
    import keras
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)
