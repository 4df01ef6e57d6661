// Must fail under AddressSanitizer: proves that the sanitizer of this build really reports.
#include <cstdlib>
#include <memory>

int main(int argc, char**) {
  const std::unique_ptr<char[]> bytes(new char[4]);
  volatile char* cursor = bytes.get();
  return cursor[3 + argc];
}
