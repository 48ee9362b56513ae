"""Parts of `tools/compare_runtimes.py`: one network, many runtimes, measured in turn.

==============  ==================================================================
``networks``    the networks, their calibration data and test inputs, as files
``variants``    what is compared: name, packages it needs, how it is made and run
``pytorch``     eager, torch.compile
``executorch``  the `.pte` variants
``onnx``        ONNX files, ONNX Runtime and OpenVINO, which reads the same files
``litert``      `.tflite` files
``turns``       one process for each variant; they take turns
``table``       ratios, spread, agreement, and the Markdown
``machine``     the line with processor and versions
==============  ==================================================================

Each runtime is imported only inside the functions that use it: they are optional.
"""
