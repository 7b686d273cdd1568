"""The hold kernel: occupies the device until a call is enqueued. The judge links its machine code once for all runners."""

from __future__ import annotations

import ctypes

from engine.domain.errors import DeviceError
from engine.trial.shared.cuda import driver as cuda

PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry espalier_hold(
  .param .u64 nanoseconds, .param .u64 arrived, .param .u64 flag, .param .u64 blocks, .param .u64 ticket
)
.maxntid 512, 1, 1
{
  .reg .u64 %end, %now, %arrived, %flag, %blocks, %ticket, %mine, %left;
  .reg .u32 %thread;
  .reg .pred %other, %more, %early;
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %other, %thread, 0;
  @%other bra done;
  mov.u64 %now, %globaltimer;
  ld.param.u64 %end, [nanoseconds];
  add.u64 %end, %end, %now;
  ld.param.u64 %arrived, [arrived];
  ld.param.u64 %blocks, [blocks];
  atom.global.add.u64 %mine, [%arrived], 1;
  add.u64 %mine, %mine, 1;
  rem.u64 %left, %mine, %blocks;
  setp.ne.u64 %more, %left, 0;
  @%more bra again;
  ld.param.u64 %flag, [flag];
  ld.param.u64 %ticket, [ticket];
  st.volatile.global.u64 [%flag], %ticket;
  membar.sys;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %early, %now, %end;
  @%early bra again;
done:
  bar.sync 0;
  ret;
}
\0"""
"""Occupies the whole device for a given time with as many blocks as fit: no other work of this process runs beside it. The last
block to arrive signals the host."""


def link() -> bytes:
    """The kernel as machine code for the current context's device, to spare runners its compilation; PTX if linking fails."""
    driver = cuda.bindings()
    kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
    try:
        state = cuda.check(driver.cuLinkCreate(0, [], []), "linking")
        cuda.check(driver.cuLinkAddData(state, kind, PTX, len(PTX), b"stopwatch", 0, [], []), "linking")
        address, size = cuda.check(driver.cuLinkComplete(state), "linking")
        image = ctypes.string_at(int(address), int(size))
        driver.cuLinkDestroy(state)
    except DeviceError:
        return PTX
    return image
