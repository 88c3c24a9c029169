#pragma once

#include <string>
#include <vector>

// Libraries that the program is built for but does not link. Each is opened at its first use, so that a program which
// does not need it starts without its cost, and on machines that lack it.
namespace fp8lab {

/// An opened library. For each library a type derives from this one, with a pointer for every function that is used:
///
///   struct Answers : SharedLibrary {
///     Answers() : SharedLibrary({.title = "Answers", .names = {"libanswers.so.2"}, .remedy = "install answers 2"}) {}
///     decltype(&::answer_question) question = find("answer_question");
///   };
///   need_library<Answers>().question();
///
/// A library is never closed, because its threads and objects that its functions returned may last as long as the
/// process.
class SharedLibrary {
 public:
  struct Wanted {
    std::string title;               ///< its usual name, for messages
    std::vector<std::string> names;  ///< file names, best first
    std::string folder = {};         ///< folder to try for each name after the loader's own search; empty: none
    std::string remedy;              ///< what to do if it is missing: "install ..."
  };

  /// Empty if the library is open and has every function. Otherwise one line: the library, why it cannot be used, and
  /// the remedy; then no function may be called.
  const std::string& unavailable_reason() const { return unavailable_reason_; }
  /// The file that was opened, or empty.
  const std::string& file() const { return file_; }

  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

 protected:
  /// Result of find(): an address that converts to the type of the pointer it initialises.
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

  /// The address of a function. Null if the library lacks it, which unavailable_reason() then reports.
  Function find(const char* name);
  /// Reports a problem that the derived type found in an open library, such as "is 2.1". It replaces reports of find().
  void refuse(const std::string& what);

 private:
  Wanted wanted_;
  void* handle_ = nullptr;
  std::string file_;
  std::string unavailable_reason_;
};

/// The one `Library` of this process, opened by the first caller. Thread-safe.
template <class Library>
const Library& find_library() {
  static const Library* const library = new Library;  // never destroyed: other static objects may still use it
  return *library;
}

/// Throws Error with unavailable_reason() if that is not empty.
void check_available(const SharedLibrary& library);

/// find_library(), after check_available().
template <class Library>
const Library& need_library() {
  const Library& library = find_library<Library>();
  check_available(library);
  return library;
}

}  // namespace fp8lab
