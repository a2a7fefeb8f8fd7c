"""``pycuda.driver``: objects over the driver's handles, with the calls that PyCUDA makes."""

import ctypes

from cuda.bindings import driver


class Error(Exception):
    pass


class LogicError(Error):
    pass


class MemoryError(Error):
    pass


class RuntimeError(Error):
    pass


def _checked(result):
    status, *values = result
    if int(status) != 0:
        raise (MemoryError if int(status) == 2 else LogicError)(str(status))
    return values[0] if values else None


def init():
    _checked(driver.cuInit(0))


class Device:
    def __init__(self, index):
        self.device = _checked(driver.cuDeviceGet(index))

    def retain_primary_context(self):
        return Context(_checked(driver.cuDevicePrimaryCtxRetain(self.device)))


class Context:
    def __init__(self, context):
        self.context = context

    @property
    def handle(self):
        return int(self.context)

    def push(self):
        _checked(driver.cuCtxPushCurrent(self.context))

    @staticmethod
    def pop():
        _checked(driver.cuCtxPopCurrent())


class Stream:
    def __init__(self, flags=0):
        self.handle = int(_checked(driver.cuStreamCreate(flags)))


class function_attribute:
    MAX_DYNAMIC_SHARED_SIZE_BYTES = (
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    )


def module_from_buffer(image):
    return Module(_checked(driver.cuModuleLoadData(image)))


class Module:
    def __init__(self, module):
        self.module = module

    def get_function(self, name):
        return Function(_checked(driver.cuModuleGetFunction(self.module, name.encode())))


class Function:
    def __init__(self, function):
        self.function = function

    def set_attribute(self, attribute, value):
        _checked(driver.cuFuncSetAttribute(self.function, attribute, value))

    def __call__(self, *args, block, grid, shared, stream):
        """All arguments in one buffer, each aligned to its size: CU_LAUNCH_PARAM_BUFFER_POINTER."""
        packed = b""
        for arg in args:
            align = next(n for n in (8, 4, 1) if arg.nbytes % n == 0)
            packed += bytes(-len(packed) % align) + arg.tobytes()
        buffer, size = (
            ctypes.create_string_buffer(packed, len(packed)),
            ctypes.c_size_t(len(packed)),
        )
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        _checked(
            driver.cuLaunchKernel(
                self.function, *grid, *block, shared, stream.handle, 0, ctypes.addressof(extra)
            )
        )
