# The entry points. `make` alone lists them.

CARGO ?= cargo
# Seconds for each fuzz target.
SECONDS = 60
# Times that `make test-long` runs all tests.
ROUNDS = 10
# Arguments of the program behind a target, as in `make bench ARGS=--quick`.
ARGS =
# The tests that run without features.
PLAIN = without_the_feature a_turn_goes_on a_turn_that_is_waited_for_and_dropped a_renewal_cut
# Programs of several versions, for `make test-matrix`.
SERVERS =

.PHONY: help demo demo-cluster test test-long test-matrix interop bench fuzz

help:
	@echo 'make demo          four processes contend for three locks; one is killed, one frozen (20 s)'
	@echo 'make demo-cluster  the same on a cluster, with a master killed and a slot moved (25 s)'
	@echo 'make test          every test, against real servers'
	@echo 'make test-long     the same, ten times, with more random cases and longer storms'
	@echo 'make test-matrix   the same on several servers   SERVERS="/path/to/one /path/to/another"'
	@echo 'make interop       beside a live Redisson; needs a JDK and Maven   ARGS=storm for the tests of that name'
	@echo 'make bench         side by side with other clients       ARGS=--quick for a short run'
	@echo 'make fuzz          every fuzz target in turn             SECONDS=60 for each'
	@echo
	@echo 'A redis-server or valkey-server is installed if none is there.'
	@echo 'LEASEHOLD_SERVER=/path/to/server picks another one.'

# Optimised: the figures of the closing table should be the library's, not the debug build's.
demo:
	@test -n "$$LEASEHOLD_URL" || .ci/install server
	@$(CARGO) run --quiet --release --package leasehold-demo -- $(ARGS)

demo-cluster:
	@.ci/install server
	@$(CARGO) run --quiet --release --package leasehold-demo -- --cluster $(ARGS)

# Most tests wait for leases to end, so twice as many run at a time as there are processors; one that fails is run once more,
# alone, and told of. Storms keep the processors busy, and get no second try.
# The last ones run what most programs build, without features: no TLS, and no clock of a fake. A turn of each primitive and its
# renewals, and what only a build without TLS shows. Of the workspace as well, so that nothing else is compiled anew.
test:
	@.ci/install server
	CARGO=$(CARGO) .ci/test
	$(CARGO) test --workspace --all-features --test storm
	$(CARGO) test --workspace --all-features --doc
	$(CARGO) test --workspace --test family --test resp -- $(PLAIN)

# More random cases for the properties, more rounds for the races, and in the first round storms of two minutes and a half,
# fifty frozen masters, and 100,000 seeds of the simulation instead of 2,000.
test-long:
	@.ci/install server
	@set -e; export LEASEHOLD_LONG=1; for round in $$(seq $(ROUNDS)); do \
		echo "round $$round of $(ROUNDS)"; \
		PROPTEST_CASES=4096 $(CARGO) test --workspace --all-features; \
		unset LEASEHOLD_LONG; \
	done

# One server after the other. A test of a feature that a server lacks says so and counts as skipped.
test-matrix:
	@.ci/matrix $(SERVERS)

# The hand-offs that were measured, and what was skipped, are printed below the tests that passed. With all features, as
# `make test` has built the library.
interop:
	@.ci/install server
	@interop/build
	$(CARGO) test --workspace --all-features --test interop -- --show-output $(ARGS)
	@test -n "$(ARGS)" || LEASEHOLD_INTEROP=1 \
		$(CARGO) test --workspace --all-features --test lock plain_mutex_others -- --show-output

bench:
	@.ci/install server
	$(CARGO) run --release --manifest-path bench/Cargo.toml -- $(ARGS)

# Without a sanitizer, so that a stable toolchain suffices: the crates forbid unsafe code, and the targets look for panics,
# overflows, endless loops and allocations of claimed lengths. New inputs go under target, so that the seeds in the tree
# stay as they are. The output of libFuzzer is shown only when it finds something.
fuzz:
	@.ci/install c++ cargo-fuzz
	$(CARGO) fuzz build -s none
	@set -e; for target in $$($(CARGO) fuzz list); do \
		echo "fuzz $$target for $(SECONDS) s"; \
		found=fuzz/target/corpus/$$target; seeds=fuzz/corpus/$$target; log=fuzz/target/$$target.log; \
		mkdir -p $$found; test -d $$seeds || seeds=; \
		$(CARGO) fuzz run -s none $$target $$found $$seeds -- -max_total_time=$(SECONDS) -max_len=4096 -len_control=0 \
			-rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1 >$$log 2>&1 || { cat $$log; exit 1; }; \
		sed -n 's/^stat::number_of_executed_units:/   executions:/p' $$log; \
	done
