// Must be found by the fuzzer within seconds: proves that fuzzing here finds things.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 2 && data[0] == 'F' && data[1] == 'o' && data[2] == 'r') std::abort();
  return 0;
}
