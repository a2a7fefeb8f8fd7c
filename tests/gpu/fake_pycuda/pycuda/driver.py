"""``pycuda.driver``: objects over the driver's handles, with the calls that PyCUDA makes."""

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
