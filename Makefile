# tinyscale: `make` prints the targets. Everything is built under build/.
ifeq ($(origin CXX),default)
CXX := $(shell command -v g++ >/dev/null 2>&1 && echo g++ || echo clang++)
endif
JOBS := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS)
endif

BUILD    ?= build
INCLUDE  ?= -Isrc
CXXFLAGS ?=
TEXT     ?= tinyscale.hpp
PREFIX   ?= /usr/local
DESTDIR  ?=
ONLY     ?=
ARGS     ?=
SECONDS  ?= 30
TARGETS  ?=
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
LIBFLAGS ?= -O2
# Bodies and the tests that compute much themselves are optimised; the others compile longer than they run.
ifeq ($(origin TESTFLAGS),undefined)
TESTFLAGS := -O1 -D_GLIBCXX_ASSERTIONS
TESTCODE  := -O0
endif
# For the tests' own code, not the bodies.
OWNCODE ?=
HEAVY_TESTS := $(BUILD)/tests/collective_test.o $(BUILD)/tests/systolic_test.o $(BUILD)/tests/model_test.o
# The tests are linked with the bodies, compiled once with the flags of the tests. Not empty: every test
# compiles the whole header, from INCLUDE.
HEADER_ONLY ?=
# load_kernel is compiled into the tests, which build kernels where there is a compiler.
TEST_MACROS := -DTINYSCALE_LOAD_KERNELS
DOCTEST_FLAGS := -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS -isystem tests $(addprefix -isystem ,$(wildcard /opt/homebrew/include))
PROGRAM  := -std=c++17 -O2 -pthread -I.
EXTERN   ?=
LIBRARY  := $(BUILD)/lib/libtinyscale.a $(BUILD)/lib/libtinyscale.so
DECLARED := $(if $(EXTERN),$(BUILD)/lib/tinyscale_extern.hpp)
LINKED   := $(if $(EXTERN),$(BUILD)/lib/libtinyscale.a)
PROGRAM  += $(if $(EXTERN),-DTINYSCALE_EXTERN -I$(BUILD)/lib)

PARTS    := src/tinyscale.hpp $(wildcard src/tinyscale/*/*.hpp)
TESTS    := $(wildcard tests/*_test.cpp)
# Several files of tests are one translation unit, which reads the header and makes its templates once;
# the heavy ones are a unit each. UNITS= compiles every file alone.
UNITS    ?= $(if $(HEADER_ONLY),,8)
# These include programs, replace operator new or define what the header looks for.
ALONE_TESTS := $(patsubst %,tests/%_test.cpp,allocation compile_pictures labs programs show)
HEAVY    := $(filter $(HEAVY_TESTS:$(BUILD)/%.o=%.cpp),$(TESTS))
UNITED   := $(if $(UNITS),$(filter-out tests/main.cpp $(ALONE_TESTS) $(HEAVY),$(TESTS)))
in_turn   = $(shell echo $(UNITED) | tr ' ' '\n' | awk 'NR % $(UNITS) == $(1) % $(UNITS)')
UNIT_OBJECTS := $(foreach u,$(if $(UNITED),$(shell seq $(UNITS))),$(if $(call in_turn,$(u)),$(BUILD)/tests/unit_$(u).o))
# The library's bodies, compiled side by side: where each begins, the first at the lowest floor.
BODY_STARTS := compute/word_pack compute/softmax tensor/ model/
BODIES   := 1 2 3 4 5
PRECOMPILED := $(if $(HEADER_ONLY),,$(BUILD)/tests/precompiled.hpp.gch)
COMPILE_TEST = $(CXX) -std=c++17 $(TEST_MACROS) $(TESTFLAGS) $(if $(filter $(HEAVY_TESTS),$@),,$(TESTCODE)) $(OWNCODE) $(CXXFLAGS) -Wall -Wextra -pthread $(if $(HEADER_ONLY),$(INCLUDE),-DTINYSCALE_EXTERN -I$(BUILD)/lib -I.) $(DOCTEST_FLAGS)
# The longest first.
TEST_OBJECTS := $(if $(HEADER_ONLY),,$(BODIES:%=$(BUILD)/tests/library_%.o)) \
  $(patsubst tests/%.cpp,$(BUILD)/tests/%.o,$(HEAVY)) $(UNIT_OBJECTS) \
  $(patsubst tests/%.cpp,$(BUILD)/tests/%.o,$(filter-out $(HEAVY) $(UNITED),$(sort $(TESTS) tests/main.cpp)))
EXAMPLES := $(wildcard examples/*.cpp examples/labs/*.cpp)
EXAMPLE_PROGRAMS := $(patsubst examples/%.cpp,$(BUILD)/examples/%,$(EXAMPLES))
# ONLY names a program of bench/, or groups of rows of bench/compute, whose alone ARGS without ONLY are.
BENCH_PROGRAMS := $(if $(wildcard bench/$(ONLY).cpp),$(BUILD)/bench/$(ONLY),$(BUILD)/bench/compare \
  $(if $(ONLY)$(ARGS),,$(BUILD)/bench/inference $(BUILD)/bench/systolic $(BUILD)/bench/layouts $(BUILD)/bench/planner))
COMPUTE_OBJECTS := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard bench/compute/*.cpp))

.PHONY: FORCE help demo plan test tests-built examples bench header lib check check-mpi check-long fuzz lint format install clean doctest
.DELETE_ON_ERROR:

help:
	@echo 'make demo        train, roofline, systolic array, three devices; writes demo.html (TEXT=path)'
	@echo 'make test        build and run the tests (needs doctest, installs it where it can; ARGS=-tc=name*)'
	@echo 'make examples    build and run every example and lab, compare with the committed outputs'
	@echo 'make plan        the planner on the command line, $(BUILD)/plan: train, serve, collective, mfu, chip, ...'
	@echo 'make bench       kernels beside the limit and other libraries, the array beside its targets (ONLY=mesh)'
	@echo 'make header      join the parts under src/ into tinyscale.hpp'
	@echo 'make lib         compile the library once: programs with -DTINYSCALE_EXTERN build in a second'
	@echo 'make check       the cheap checks: header fresh, floors, budgets, symbols, warnings, version'
	@echo 'make check-long  every CPU path under the sanitizers, emulation, each part alone; takes long'
	@echo 'make fuzz        every reader of files fuzzed for SECONDS=30 each (needs clang++ with libFuzzer)'
	@echo 'make check-mpi   mesh programs on threads and on 2, 4, 8 MPI ranks: the same numbers, logs, errors'
	@echo 'make lint        clang-tidy over the header'
	@echo 'make format      clang-format over the sources'
	@echo 'make install     the header and its .pc file, the library if built (PREFIX=/usr/local)'
	@echo 'make clean       remove build/'

header: tinyscale.hpp
tinyscale.hpp: $(PARTS) tools/join.awk
	@awk -v root=src -f tools/join.awk > $@.$$$$.tmp && mv $@.$$$$.tmp $@ || { rm -f $@.$$$$.tmp; exit 1; }
	@echo 'joined tinyscale.hpp'

# The library: the bodies, compiled once, and the declarations of what it holds.
lib: $(LIBRARY) $(BUILD)/lib/tinyscale_extern.hpp
	@echo 'built $(LIBRARY): compile with -DTINYSCALE_EXTERN -I$(BUILD)/lib -I.'
$(BUILD)/lib/tinyscale_extern.hpp: tinyscale.hpp tools/extern.awk
	@mkdir -p $(@D)
	awk -f tools/extern.awk $< > $@
$(BODIES:%=$(BUILD)/lib/library_%.cpp): $(BUILD)/lib/library_%.cpp: tinyscale.hpp tools/extern.awk
	@mkdir -p $(@D)
	awk -v library=1 -v from='$(filter-out lowest,$(word $*,lowest $(BODY_STARTS)))' -v to='$(word $*,$(BODY_STARTS))' -f tools/extern.awk $< > $@
$(BODIES:%=$(BUILD)/lib/library_%.o): $(BUILD)/lib/library_%.o: $(BUILD)/lib/library_%.cpp
	$(CXX) -std=c++17 $(LIBFLAGS) $(CXXFLAGS) -fPIC -pthread -c $< -o $@
$(BUILD)/lib/libtinyscale.a: $(BODIES:%=$(BUILD)/lib/library_%.o)
	rm -f $@ && ar rcs $@ $^
$(BUILD)/lib/libtinyscale.so: $(BODIES:%=$(BUILD)/lib/library_%.o)
	$(CXX) $(LIBFLAGS) $(CXXFLAGS) -shared -pthread $^ -o $@

demo: $(BUILD)/examples/00_demo
	@$(BUILD)/examples/00_demo "$(TEXT)"

test: tests-built
	@bash tools/run_tests.sh $(BUILD)/run_tests $(ARGS)
tests-built: $(BUILD)/run_tests
$(BUILD)/run_tests: $(TEST_OBJECTS)
	$(CXX) $(TESTFLAGS) $(CXXFLAGS) -pthread $(filter $(HEAVY_TESTS),$^) $(filter-out $(HEAVY_TESTS),$^) -ldl -o $@
# Below model/ the bodies compute; those above compile longer than they run.
$(BODIES:%=$(BUILD)/tests/library_%.o): $(BUILD)/tests/library_%.o: $(BUILD)/lib/library_%.cpp
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(TEST_MACROS) $(TESTFLAGS) $(if $(filter $(lastword $(BODIES)),$*),$(TESTCODE)) $(CXXFLAGS) -pthread -c $< -o $@
# What every test includes, read once. It is of use only to those compiled with the same flags.
PLAIN_TESTS := $(BUILD)/tests/main.o $(if $(TESTCODE),$(HEAVY_TESTS))
$(PRECOMPILED): tinyscale.hpp $(BUILD)/lib/tinyscale_extern.hpp | doctest
	@mkdir -p $(@D)
	@printf '#include <doctest/doctest.h>\n#include "tinyscale.hpp"\n' > $(@:.gch=)
	$(COMPILE_TEST) -x c++-header $(@:.gch=) -o $@
COMPILE_OBJECT = $(COMPILE_TEST) $(if $(filter $(PLAIN_TESTS),$@),,$(addprefix -include ,$(PRECOMPILED:.gch=))) -MMD -MP -c $< -o $@
$(BUILD)/tests/%.o: tests/%.cpp tinyscale.hpp $(PRECOMPILED) | doctest
	@mkdir -p $(@D)
	$(COMPILE_OBJECT)
$(UNIT_OBJECTS): $(BUILD)/tests/unit_%.o: $(BUILD)/tests/unit_%.cpp tinyscale.hpp $(PRECOMPILED) | doctest
	$(COMPILE_OBJECT)
$(UNIT_OBJECTS:.o=.cpp): $(BUILD)/tests/unit_%.cpp: tools/unit.awk FORCE
	@mkdir -p $(@D)
	@awk -v root='$(CURDIR)' -f tools/unit.awk $(call in_turn,$*) > $@.tmp && \
	  if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi
FORCE:
doctest:
	@CXX='$(CXX)' DOCTEST_FLAGS='$(DOCTEST_FLAGS)' bash tools/install_doctest.sh
-include $(filter-out $(BUILD)/tests/library_%,$(TEST_OBJECTS:.o=.d))

# Beside the compiled library the declarations are read once for all programs of the same flags.
READ_ONCE := $(if $(EXTERN),$(BUILD)/examples/precompiled.hpp)
EVERY_PROGRAM := $(PROGRAM)
$(addsuffix .gch,$(READ_ONCE)): tinyscale.hpp $(DECLARED)
	@mkdir -p $(@D)
	@printf '#include "tinyscale.hpp"\n' > $(@:.gch=)
	$(CXX) $(EVERY_PROGRAM) $(CXXFLAGS) -x c++-header $(@:.gch=) -o $@
$(BUILD)/examples/%: examples/%.cpp tinyscale.hpp $(DECLARED) $(LINKED) $(addsuffix .gch,$(READ_ONCE))
	@mkdir -p $(@D)
	$(CXX) $(PROGRAM) $(CXXFLAGS) $(addprefix -include ,$(READ_ONCE)) $< $(LINKED) -o $@
$(BUILD)/examples/plan: $(wildcard examples/plan_*.hpp)
# GNU's g++ optimises the kernels whatever its flags, and these two wait for the compiler more than for the rest.
$(BUILD)/examples/plan $(BUILD)/examples/00_demo: PROGRAM := $(filter-out $(if \
  $(findstring __clang__,$(shell $(CXX) -dM -E -x c++ /dev/null 2>/dev/null)),,-O2),$(PROGRAM))
$(BUILD)/examples/36_continue_a_story: examples/plan_options.hpp $(wildcard examples/story_*.hpp)
plan: $(BUILD)/examples/plan
	@cp $< $(BUILD)/plan && echo 'built $(BUILD)/plan: $(BUILD)/plan help'
examples: $(EXAMPLE_PROGRAMS)
	@bash tools/run_examples.sh $(BUILD)/examples

$(BUILD)/bench/%: bench/%.cpp $(wildcard bench/*.hpp) tinyscale.hpp $(DECLARED) $(LINKED)
	@mkdir -p $(@D)
	$(CXX) $(PROGRAM) $(CXXFLAGS) $< $(LINKED) -ldl -o $@
# A peer; absent without mpicc, and the bench says so.
$(BUILD)/bench/mesh: | $(BUILD)/bench/mpi_collectives
$(BUILD)/bench/mpi_collectives: bench/mpi_collectives.c
	@mkdir -p $(@D)
	@if command -v mpicc > /dev/null; then mpicc -O2 $< -o $@; fi
$(BUILD)/bench/compute/%.o: bench/compute/%.cpp $(wildcard bench/compute/*.hpp) $(PARTS)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O2 -Wall -Wextra -pthread $(INCLUDE) $(CXXFLAGS) -c $< -o $@
$(BUILD)/bench/compare: $(COMPUTE_OBJECTS) $(BUILD)/bench/train_plain
	$(CXX) -pthread $(COMPUTE_OBJECTS) -ldl -o $@
$(BUILD)/bench/train_plain: bench/train_plain.c
	@mkdir -p $(@D)
	-$(CC) -Ofast -march=native -fopenmp $< -lm -o $@ || $(CC) -Ofast -march=native $< -lm -o $@
# The same for decoding: f32 and int8, as fast as a compiler makes plain loops and as users build.
$(BUILD)/bench/inference: | $(BUILD)/bench/decode_plain
$(BUILD)/bench/decode_plain: bench/decode_plain.c
	@mkdir -p $(@D)
	-for int8 in '' '-DINT8'; do for o in '-Ofast -march=native' -O3; do \
	  name=$@$${int8:+_int8}; case $$o in -O3) name=$${name}_o3;; esac; \
	  $(CC) $$o -fopenmp $$int8 $< -lm -o $$name || $(CC) $$o $$int8 $< -lm -o $$name || exit 1; done; done
bench: $(BENCH_PROGRAMS)
	@for program in $(BENCH_PROGRAMS); do \
	  $$program $(if $(findstring compare,$(BENCH_PROGRAMS)),$(if $(ONLY),--only=$(ONLY))) $(ARGS) || exit 1; done

check: tinyscale.hpp
	@WARNINGS='$(WARNINGS)' bash tools/check.sh
# The mesh on MPI ranks gives what threads give; tools/check_simgrid.sh is for developers too.
check-mpi: tinyscale.hpp
	@bash tools/check_mpi.sh $(BUILD) || [ $$? -eq 77 ]
# TARGETS='json gguf': some of them.
fuzz:
	@JOBS='$(JOBS)' TARGETS='$(TARGETS)' BUILD='$(BUILD)/fuzz' bash tools/fuzz.sh $(SECONDS)
check-long:
	@WARNINGS='$(WARNINGS)' bash tools/check_long.sh

needs = @command -v $(1) > /dev/null || { echo 'no $(1): apt-get install $(1) (macOS: brew install llvm)'; exit 1; }
lint:
	$(call needs,clang-tidy)
	@mkdir -p $(BUILD)
	@printf '#include "tinyscale.hpp"\nint main() {}\n' > $(BUILD)/lint.cpp
	clang-tidy --quiet $(BUILD)/lint.cpp -- -std=c++17 -Isrc
format:
	$(call needs,clang-format)
	@clang-format -i $(filter-out src/tinyscale.hpp,$(PARTS)) $(wildcard tests/*.cpp tests/*.hpp tests/*/*.cpp tests/*/*.hpp bench/*.cpp bench/*.hpp bench/*/*.cpp bench/*/*.hpp bench/*.c tools/simgrid/*.c* examples/plan_*.hpp) $(EXAMPLES)

install: tinyscale.hpp
	mkdir -p '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	cp tinyscale.hpp '$(DESTDIR)$(PREFIX)/include/tinyscale.hpp'
	@# Not abspath, which takes a path with spaces for several.
	{ echo 'prefix=$(if $(filter /%,$(PREFIX)),,$(CURDIR)/)$(PREFIX)'; \
	  sed "s|@VERSION@|$$(bash tools/version.sh)|" tinyscale.pc.in; } \
	  > '$(DESTDIR)$(PREFIX)/lib/pkgconfig/tinyscale.pc'
	@if [ -f $(BUILD)/lib/libtinyscale.a ] && [ -f $(BUILD)/lib/libtinyscale.so ]; then \
	  $(MAKE) --no-print-directory lib && \
	  cp $(BUILD)/lib/tinyscale_extern.hpp '$(DESTDIR)$(PREFIX)/include/' && \
	  cp $(LIBRARY) '$(DESTDIR)$(PREFIX)/lib/' && echo 'installed the compiled library as well'; fi

clean:
	rm -rf $(BUILD)
