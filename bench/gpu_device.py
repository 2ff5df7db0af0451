# SPDX-License-Identifier: Apache-2.0
"""Where gpu_attention.py's work runs: one stream of a GPU, with graphs and events; or this
processor, on which the script itself can be tried."""
import ctypes
import gc
import importlib.util
import sys
import time
from pathlib import Path

import torch

import attnhost_ctypes


def find_nvrtc():
    """Plugins open NVRTC by its name. Where the system's folders lack it, open the copy that comes
    with PyTorch: a library that is open is found by its name. What was opened, or None."""
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else [])]
    copies = [str(path) for folder in folders for path in sorted(folder.glob(f"*/lib/{name}"))]
    for path in [name, f"/usr/local/cuda/lib64/{name}"] + copies:
        try:
            ctypes.CDLL(path)
            return path
        except OSError:
            continue
    return None


class Cuda:
    """The first GPU. Everything goes to one stream, PyTorch's current one."""

    name = "cuda"
    type = attnhost_ctypes.CUDA
    captures = True
    copy_bytes = 2 << 30  # of the measurement of the copying rate
    matmul_size = 8192

    def __init__(self):
        if not torch.cuda.is_available():
            sys.exit("gpu_attention: PyTorch sees no GPU; --dry-run shows the plan without one")
        self.torch_stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.torch_stream)
        self.stream = self.torch_stream.cuda_stream
        self.cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.nvrtc = find_nvrtc()

    def describe(self):
        properties = torch.cuda.get_device_properties(0)
        driver = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
        return {"name": properties.name, "sm": f"{properties.major}{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "l2_bytes": properties.L2_cache_size, "cuda": torch.version.cuda,
                "driver_cuda": driver.value, "cudnn": torch.backends.cudnn.version(),
                "nvrtc": self.nvrtc}

    def synchronize(self):
        torch.cuda.synchronize()

    def release_memory(self):
        torch.cuda.empty_cache()

    def free_bytes(self):
        return torch.cuda.mem_get_info()[0]

    def capture(self, step):
        """A graph of the work that `step` enqueues; its replay() runs it."""
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        gc.disable()  # what it would free might not be for a capture
        graph.capture_begin()
        try:
            step()
        except BaseException:
            try:
                graph.capture_end()
            except RuntimeError:
                pass  # the capture was spoilt by what is raised below
            raise
        finally:
            gc.enable()
        graph.capture_end()
        return graph

    def is_capturing(self):
        return torch.cuda.is_current_stream_capturing()

    def microseconds(self, run, wait):
        """Device time of the work that `run` enqueues. For about `wait` microseconds before that it spins, so that
        everything is enqueued when it begins."""
        torch.cuda._sleep(int(2000 * wait))
        self.begin.record()
        run()
        self.end.record()
        self.end.synchronize()
        return 1e3 * self.begin.elapsed_time(self.end)

    def state(self):
        """Clock, power, temperature; None where NVML cannot be asked."""
        state = {}
        for name, ask in (("sm_mhz", torch.cuda.clock_rate), ("milliwatt", torch.cuda.power_draw),
                          ("celsius", torch.cuda.temperature)):
            try:
                state[name] = ask()
            except Exception:  # a missing package, or whatever NVML raises
                state[name] = None
        return state

    def graph_launch(self):
        """Address of cuGraphLaunch."""
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuGraphLaunch, ctypes.c_void_p)


class Cpu:
    """This processor: nothing is captured, the clock is the host's."""

    name = "cpu"
    type = attnhost_ctypes.CPU
    captures = False
    stream = None
    cache_bytes = 1 << 18  # small, so that little is rotated
    copy_bytes = 16 << 20
    matmul_size = 256

    def describe(self):
        return {"name": "cpu"}

    def synchronize(self):
        pass

    def release_memory(self):
        pass

    def free_bytes(self):
        return 4 << 30

    def is_capturing(self):
        return False

    def microseconds(self, run, wait):
        begin = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - begin)

    def state(self):
        return {}
