# docker build -t epsilometer . && docker run --rm -v "$PWD:/work" epsilometer demo
FROM python:3.13-slim AS built
COPY . /source
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist /source

FROM python:3.13-slim
ARG EXTRAS=""
COPY --from=built /dist/*.whl /tmp/
RUN wheel=$(ls /tmp/*.whl) && pip install --no-cache-dir "${wheel}${EXTRAS}" && rm /tmp/*.whl \
    && useradd --create-home auditor
USER auditor
WORKDIR /work
ENTRYPOINT ["epsilometer"]
CMD ["--help"]
