# make demo   reads a document and answers questions about it, with the full cache and in 20% of it
# make test   builds and runs all tests: with and without sanitizers, the fuzzer for a minute, the Python package
# Both set up what they need; a second run does only what has changed.
BUILD ?= build
CMAKE_FLAGS ?=

.PHONY: demo test build bench quick-eval lint clean
.DELETE_ON_ERROR:

demo: build
	@scripts/demo.py $(BUILD)/src/holdfast

test: setup
	@scripts/install-packages.sh test bench
	@scripts/fetch.sh gemma3 jieba
	@scripts/test.sh release $(BUILD) -DHOLDFAST_SANITIZE=OFF -DHOLDFAST_BENCH=ON $(CMAKE_FLAGS)
	@scripts/test.sh sanitized $(BUILD)-sanitize -DHOLDFAST_SANITIZE=address $(CMAKE_FLAGS)
	@scripts/test-threads.sh $(BUILD)-threads $(CMAKE_FLAGS)
	@scripts/fuzz.sh $(BUILD)-fuzz $(CMAKE_FLAGS)
	@scripts/test-python.sh $(BUILD)-python $(CMAKE_FLAGS)

build: setup
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS) >/dev/null
	@cmake --build $(BUILD) --target holdfast holdfast_shared manual

.PHONY: setup
setup:
	@scripts/install-packages.sh
	@scripts/fetch.sh

# The kernels beside the machine's limits, then reading and decoding beside llama.cpp.
BENCH ?=
bench: build
	@scripts/install-packages.sh bench
	@cmake -S . -B $(BUILD) -DHOLDFAST_BENCH=ON >/dev/null
	@cmake --build $(BUILD) --target kernels_bench
	@$(BUILD)/bench/kernels_bench
	@bench/compare-llama.py $(BUILD)/src/holdfast $(BENCH)

# Eight methods on the tasks of RULER that need no download; goes on where it was interrupted.
QUICK_EVAL ?= quick-eval
quick-eval: build
	@scripts/fetch.sh essays
	@$(BUILD)/src/holdfast eval ruler --length 2048 --samples 10 --seed 1 --budgets 20% --out $(QUICK_EVAL) --resume \
	  --methods full,snapkv,adakv,critical-adakv,headkv,critical-headkv,defensive,layer-defensive
	@$(BUILD)/src/holdfast report $(QUICK_EVAL)

lint: setup
	@scripts/lint.sh $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-*
