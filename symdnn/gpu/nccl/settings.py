"""What a communicator of NCCL is told: ``ncclConfig_t``, by the flags ``distributed.*``."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint
from dataclasses import dataclass, replace

from symdnn.config import config
from symdnn.world import process

#: ``NCCL_CONFIG_UNDEF_INT`` and ``NCCL_API_MAGIC``; the version whose fields :class:`Config` has,
#: all of which newer ones have too.
_UNDEFINED, _MAGIC, _VERSION = -(2**31), 0xCAFEBEEF, 22800
_POLICIES = {"default": 0, "efficiency": 1, "zero": 2}
_ctas = config.reader("distributed.ctas")
_policy = config.reader("distributed.cta_policy")
_registers = config.reader("distributed.registered")


#: Thread blocks of a collective of registered memory: the fewest that are as fast as more of them
#: beside other kernels, which need the rest of a card's multiprocessors.
_FEW_BLOCKS = 16


def registers() -> bool:
    """Whether large operands lie in registered memory: by the flag where all ranks are on one
    machine, or for copy engines, which move nothing else."""
    place = process.current().place
    here = place.local_size == place.size
    return (bool(_registers()) and here) or str(_policy()) == "zero"


class Config(ctypes.Structure):
    """The fields of ``ncclConfig_t`` up to ``CTAPolicy``; its size says that there are no more."""

    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int),
        ("cgaClusterSize", c_int), ("minCTAs", c_int), ("maxCTAs", c_int), ("netName", c_char_p),
        ("splitShare", c_int), ("trafficClass", c_int), ("commName", c_char_p),
        ("collnetEnable", c_int), ("CTAPolicy", c_int),
    ]  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The most thread blocks of a collective (0: NCCL's own choice), and the policy's name."""

    ctas: int = 0
    policy: str = "default"

    @classmethod
    def of_flags(cls) -> Settings:
        """Those of the flags ``distributed.ctas`` and ``distributed.cta_policy``."""
        policy = str(_policy())
        few = _FEW_BLOCKS if registers() and policy != "zero" else 0
        return cls(int(_ctas()) or few, policy)

    @property
    def by_copy_engines(self) -> bool:
        """Whether NCCL moves registered memory without thread blocks, where it can."""
        return self.policy == "zero"

    @property
    def with_blocks(self) -> Settings:
        """The same for what copy engines can't do, or must not do."""
        return replace(self, policy="default") if self.by_copy_engines else self

    def config(self) -> Config | None:
        """The structure for NCCL; None if it has nothing but defaults."""
        if self == Settings():
            return None
        made = Config(ctypes.sizeof(Config), _MAGIC, _VERSION)
        for field in Config._fields_[3:]:
            if field[1] is c_int:
                setattr(made, field[0], _UNDEFINED)
        if self.ctas:
            made.minCTAs, made.maxCTAs = 1, self.ctas
        made.CTAPolicy = _POLICIES[self.policy]
        return made
