#pragma once

#include <string>
#include <vector>

// Libraries that the program is built for and does not link: they are opened by who first needs them, so that a program
// which needs none starts without their cost, and on machines that lack them.
namespace fp8lab {

/// An opened library. Each is a type that derives from this one, with a pointer for every function that is wanted of
/// it:
///
///   struct Answers : SharedLibrary {
///     Answers() : SharedLibrary({.title = "Answers", .names = {"libanswers.so.2"}, .remedy = "install answers 2"}) {}
///     decltype(&::answer_question) question = find("answer_question");
///   };
///   need_library<Answers>().question();
///
/// It is never closed: its threads, and what its functions handed out, may last as long as the process.
class SharedLibrary {
 public:
  struct Wanted {
    std::string title;               ///< as people call it
    std::vector<std::string> names;  ///< of the file, best first
    std::string folder = {};         ///< where to look for each after the loader's own search; empty: nowhere
    std::string remedy;              ///< what to do where it is missing: "install ..."
  };

  /// Empty where the library is open and has every function; else one line: what was looked for, why it did not do, and
  /// the remedy. No function may be called then.
  const std::string& unavailable_reason() const { return unavailable_reason_; }
  /// The file that was opened; empty where none was.
  const std::string& file() const { return file_; }

  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

 protected:
  /// What find() answers: an address that takes the type of the pointer it initialises.
  class Function {
   public:
    explicit Function(void* address) : address_(address) {}
    template <class T>
    operator T*() const {
      return reinterpret_cast<T*>(address_);
    }

   private:
    void* address_;
  };

  explicit SharedLibrary(Wanted wanted);
  ~SharedLibrary() = default;

  /// Null, and unavailable_reason() says so, where the library lacks it.
  Function find(const char* name);
  /// For what the derived type finds wrong with a library that is open, as "2.1 is too old". It comes before what
  /// find() missed.
  void refuse(const std::string& what);

 private:
  Wanted wanted_;
  void* handle_ = nullptr;
  std::string file_;
  std::string unavailable_reason_;
};

/// The one `Library` of this process, opened by the first who asks. Threads may ask at once.
template <class Library>
const Library& find_library() {
  static const Library* const library = new Library;  // outlives what other static objects still hold of it
  return *library;
}

/// Throws Error with unavailable_reason() where that is not empty.
void check_available(const SharedLibrary& library);

/// The same, available.
template <class Library>
const Library& need_library() {
  const Library& library = find_library<Library>();
  check_available(library);
  return library;
}

}  // namespace fp8lab
