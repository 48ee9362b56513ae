"""Helpers of M08: from a quantized PyTorch graph to an ExecuTorch program that really runs.

========================  ==========================================================
``common.pt2e``           export, quantizer, the known noise of the libraries silenced
``common.executorch_utils``  quantize, lower to XNNPACK, look inside, run a ``.pte``
``common.metrics``        SQNR, distance in LSB, accuracy
``common.layers``         SQNR of every layer of a Q/DQ graph
``common.inspection``     any ``.pte`` without its model: what is in it, what changed
``common.report``         what becomes of a model's ops on the road, and what to change
``common.graph_utils``    short op names and op counts of an FX graph
``common.models``         the course model
``common.data``           real digits, the trained course model
``common.viz``            graphs as pictures, tables
``common.env``            the line that says what decides the numbers; captured stderr
========================  ==========================================================
"""

__version__ = "0.1.0"

DISTRIBUTION = "m08-executorch"
"""Name of the installed distribution; tells this package from another one called ``common``."""
