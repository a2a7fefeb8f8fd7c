"""Files: parameters as ``.npz`` or ``.safetensors``."""

from symdnn.io.parameters import Parameters, load_parameters, save_parameters

__all__ = ["Parameters", "load_parameters", "save_parameters"]
