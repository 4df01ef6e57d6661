// Tells ThreadSanitizer what Abseil's mutexes order. Only in the preset `tsan`, in every program.
//
// The distribution builds Abseil without ThreadSanitizer, which then sees neither a lock nor an
// unlock and calls everything that a mutex guards a race. The functions here take the place of
// Abseil's of the same names, call the real ones, and say what they order.

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
// Of the ThreadSanitizer runtime.
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

#define FORESTAGE_STRING_INNER(text) #text
#define FORESTAGE_STRING(text) FORESTAGE_STRING_INNER(text)
constexpr char kInlineNamespace[] = FORESTAGE_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);

// Abseil's own function; `rest` is its mangled name behind the namespaces, `qualifiers` "K" for a
// const member.
template <typename Function>
Function Real(const char* qualifiers, const char* rest) {
  const std::string name = std::string("_ZN") + qualifiers + "4absl" +
                           std::to_string(sizeof(kInlineNamespace) - 1) + kInlineNamespace + rest;
  void* address = dlsym(RTLD_NEXT, name.c_str());
  if (address == nullptr) std::abort();
  return reinterpret_cast<Function>(address);
}

// A real call that may run conditions of other threads, with the lock but after its release here.
class ForeignConditions {
 public:
  ForeignConditions() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ForeignConditions() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void (*)(Mutex*)>("", "5Mutex4LockEv");
  {
    const ForeignConditions ignore;
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void (*)(Mutex*)>("", "5Mutex6UnlockEv");
  __tsan_release(this);
  const ForeignConditions ignore;
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("", "5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void (*)(Mutex*)>("", "5Mutex10ReaderLockEv");
  {
    const ForeignConditions ignore;
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void (*)(Mutex*)>("", "5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  const ForeignConditions ignore;
  real(this);
}

bool Mutex::ReaderTryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("", "5Mutex13ReaderTryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real =
      Real<void (*)(Mutex*, const Condition&)>("", "5Mutex8LockWhenERKNS0_9ConditionE");
  {
    const ForeignConditions ignore;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Duration)>(
      "", "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool met = false;
  {
    const ForeignConditions ignore;
    met = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Time)>(
      "", "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  bool met = false;
  {
    const ForeignConditions ignore;
    met = real(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void Mutex::Await(const Condition& condition) {
  static const auto real =
      Real<void (*)(Mutex*, const Condition&)>("", "5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    const ForeignConditions ignore;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Duration)>(
      "", "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  bool met = false;
  {
    const ForeignConditions ignore;
    met = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition&, Time)>(
      "", "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  bool met = false;
  {
    const ForeignConditions ignore;
    met = real(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void (*)(CondVar*, Mutex*)>("", "7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  {
    const ForeignConditions ignore;
    real(this, mutex);
  }
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, Duration)>(
      "", "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  bool timed_out = false;
  {
    const ForeignConditions ignore;
    timed_out = real(this, mutex, timeout);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, Time)>(
      "", "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  bool timed_out = false;
  {
    const ForeignConditions ignore;
    timed_out = real(this, mutex, deadline);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static const auto real = Real<void (*)(Notification*)>("", "12Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real =
      Real<void (*)(const Notification*)>("K", "12Notification19WaitForNotificationEv");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto real = Real<bool (*)(const Notification*, Duration)>(
      "K", "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
