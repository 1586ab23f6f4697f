"""One of two processes of an SFT stage under FSDP2, on CPU: ``torchrun --nproc_per_node 2 fsdp_script.py HOME KIND``.

accelerate takes FSDP for GPUs alone and would fall back to data parallelism here, so this script tells it otherwise;
the trainer, torch's ``fully_shard`` and the checkpoint are the real ones.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(
    ACCELERATE_USE_FSDP="true",
    FSDP_VERSION="2",
    FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
    FSDP_RESHARD_AFTER_FORWARD="true",
    FSDP_CPU_RAM_EFFICIENT_LOADING="false",
)

import block_script
import sft_script
import torch
from accelerate.state import AcceleratorState, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor

from policy import training_state


def let_accelerate_cut_on_cpu() -> None:
    build = AcceleratorState.__init__

    def init(self, *arguments, **names):
        is_first = not AcceleratorState._shared_state
        build(self, *arguments, **names)
        if is_first:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = FullyShardedDataParallelPlugin()

    AcceleratorState.__init__ = init


def main() -> None:
    home, kind = Path(sys.argv[1]), sys.argv[2]
    let_accelerate_cut_on_cpu()
    torch.set_num_threads(1)
    cut, start = [], training_state.TrainingState.start_rng

    def start_rng(self, seed):
        cut.extend(isinstance(parameter, DTensor) for parameter in self.parameters.values())
        start(self, seed)

    training_state.TrainingState.start_rng = start_rng
    result = sft_script.train(home, kind, block_script.open_ledger(home))
    assert cut and all(cut), "every trained parameter is cut over the processes"
    if os.environ["RANK"] == "0":
        print(result.model_dump_json())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
