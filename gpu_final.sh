export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name --format=csv,noheader
date +%T
for room in flash_options flash sparse; do
  python -c "
from common.compiling.load import build
from common.compiling.request import BuildRequest
import time; t=time.time(); build(BuildRequest('$room', backend='cuda')); print('$room', round(time.time()-t))" > $OUT/build_$room.txt 2>&1 &
done
wait; tail -qn 2 $OUT/build_*.txt; date +%T
timeout 75 python -m common.benchmark options --rounds 5 --seconds 55 --json $OUT/options.json > $OUT/options.txt 2>&1
date +%T
timeout 32 python -m common.benchmark options --seq 16384 --option softcap window sinks dropout packed --rounds 3 --seconds 22 --json $OUT/options16k.json > $OUT/options16k.txt 2>&1
date +%T
timeout 45 python -m task4.benchmark --dtype bf16 --seq 512 2048 8192 16384 --versions wgmma flash cudnn --rounds 4 --seconds 32 --json $OUT/dense.json > $OUT/dense.txt 2>&1
date +%T
timeout ${TESTS:-170} python -m pytest -q -m gpu -n 12 --dist loadfile -p no:cacheprovider -rf --tb=line tests/common/kernels/flash_options tests/common/kernels/flash tests/common/kernels/test_attention.py tests/common/kernels/sparse tests/common/kernels/decode tests/task7/front_door > $OUT/tests.txt 2>&1
date +%T; tail -n 12 $OUT/tests.txt | cut -c1-300
tail -n 30 $OUT/options.txt; tail -n 14 $OUT/options16k.txt; tail -n 26 $OUT/dense.txt
