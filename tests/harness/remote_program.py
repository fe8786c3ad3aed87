"""An agent whose turns are taken by the server that the environment names; processes that are killed load it."""

import os

import holdfast as hf
from holdfast.harness import Remote

TOKEN = "a-token-that-only-tests-have"
ADDRESS = "HOLDFAST_TEST_REMOTE"
here = hf.Agent("here", harness=Remote(os.environ.get(ADDRESS, "http://127.0.0.1:1"), "killed", token=TOKEN))
