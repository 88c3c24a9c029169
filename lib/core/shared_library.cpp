#include "core/shared_library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

/// The file behind a handle, as the loader found it.
std::string file_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

}  // namespace

SharedLibrary::SharedLibrary(Wanted wanted) : wanted_(std::move(wanted)) {
  std::vector<std::string> places;
  for (const std::string& name : wanted_.names) {
    places.push_back(name);
    if (!wanted_.folder.empty()) places.push_back(wanted_.folder + "/" + name);
  }
  std::string errors;
  for (const std::string& place : places) {
    handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = file_of(handle_);
      return;
    }
    errors += fmt::format("{}{}", errors.empty() ? "" : "; ", dlerror());  // dlerror() begins with the name
  }
  unavailable_reason_ = fmt::format("{} cannot be loaded ({}); {}", wanted_.title, errors, wanted_.remedy);
}

SharedLibrary::Function SharedLibrary::find(const char* name) {
  if (handle_ == nullptr) return Function(nullptr);
  void* const address = dlsym(handle_, name);
  if (address == nullptr && unavailable_reason_.empty()) refuse(fmt::format("has no function '{}'", name));
  return Function(address);
}

void SharedLibrary::refuse(const std::string& what) {
  unavailable_reason_ = fmt::format("{}: {} {}; {}", wanted_.title, file_, what, wanted_.remedy);
}

void check_available(const SharedLibrary& library) {
  check(library.unavailable_reason().empty(), library.unavailable_reason());
}

}  // namespace fp8lab
