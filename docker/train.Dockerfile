# The trainer, with PyTorch:
#
#     docker build -f docker/train.Dockerfile -t onnxgen-train --build-arg TORCH_INDEX=URL .             # the CPU
#     docker build -f docker/train.Dockerfile -t onnxgen-train --build-arg BASE=pytorch/pytorch:TAG .    # CUDA
#     docker run --rm -v "$PWD:/work" onnxgen-train train model.py --data digits
#
# URL is the index that PyTorch's selector shows for pip and CPU; without it, pip fetches the GPU libraries, too. With
# CUDA, choose a TAG of pytorch/pytorch with PyTorch 2.5 or newer, and run with `--gpus all --ipc host`.
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH_INDEX=
COPY . /src
# A base with PyTorch keeps it.
RUN python -c "import torch" 2>/dev/null || pip install --no-cache-dir torch ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
RUN pip install --no-cache-dir "/src[verify,train,lora,text,sound,detection]" && rm -rf /src
RUN useradd --create-home trainer
USER trainer
WORKDIR /work
ENTRYPOINT ["onnxgen"]
