// Must fail under ThreadSanitizer: proves that the sanitizer of this build really reports.
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&shared] { shared = 1; });
  shared = 2;
  other.join();
  return shared == 3;
}
