# The generator alone, for a file that you don't trust:
#
#     docker build -f docker/generate.Dockerfile -t onnxgen-generate .
#     docker run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#         --memory 8g --pids-limit 64 --user "$(id -u):$(id -g)" -v "$PWD/strange:/work" \
#         onnxgen-generate stranger.onnx -o model.py
#
# The folder `strange` is all that the container can read and write. SECURITY.md says what to expect of such a file.
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["onnxgen"]
