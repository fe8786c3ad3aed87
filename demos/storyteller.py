"""The agent of the local demo: a storyteller on a small model of this very machine."""

import os

import holdfast as hf
from holdfast.models import OpenAI

model = OpenAI("smollm2", base_url=os.environ["LOCAL_MODEL"], key="none")
storyteller = hf.Agent("storyteller", model=model, instructions="You tell short stories.", settings={"max_tokens": 160})
app = hf.App(storyteller)
