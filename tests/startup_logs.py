"""Lines of start-up logs, of vLLM 0.32 with NCCL's own and of vLLM 0.6, with a secret where such logs have them."""

from __future__ import annotations

V1 = """\
(APIServer pid=1) INFO 11-30 07:03:08 [api_utils.py:286] non-default args: {'model_tag': 'q', 'api_key': ['secret'], 'tensor_parallel_size': 2}
(EngineCore pid=2) INFO 11-30 07:03:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='q', tensor_parallel_size=2, \
pipeline_parallel_size=1, data_parallel_size=1, decode_context_parallel_size=1, kv_cache_dtype=auto
(Worker pid=3) INFO 11-30 07:03:42 [parallel_state.py:1906] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl
(Worker pid=4) INFO 11-30 07:03:42 [parallel_state.py:1906] world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://127.0.0.1:1 backend=nccl
(Worker pid=3) INFO 11-30 07:03:42 [pynccl.py:148] vLLM is using nccl==2.27.3
(Worker pid=3) INFO 11-30 07:03:43 [parallel_state.py:2350] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0
node1:3:3 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:4:4 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM
(APIServer pid=1) INFO 11-30 07:03:45 [entry.py:140] Starting vLLM server on http://127.0.0.1:58033
""".splitlines()

V0 = """\
INFO 09-30 10:00:00 api_server.py:527] vLLM API server version 0.6.3
INFO 09-30 10:00:00 api_server.py:528] args: Namespace(model='q', tensor_parallel_size=4, api_key='secret')
INFO 09-30 10:00:05 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='q', tensor_parallel_size=4, pipeline_parallel_size=2, \
disable_custom_all_reduce=False
INFO 09-30 10:00:09 utils.py:1008] Found nccl from library libnccl.so.2
INFO 09-30 10:00:09 pynccl.py:63] vLLM is using nccl==2.20.5
WARNING 09-30 10:00:10 custom_all_reduce.py:118] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence
""".splitlines()
