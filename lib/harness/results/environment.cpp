#include "harness/results/environment.h"

#include <elf.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/Version.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 13> kPrefixes{
    "NCCL_",     "CUDA_",          "CUBLAS_",        "CUDNN_",  "NVIDIA_VISIBLE_", "SLURM_",      "OMPI_COMM_WORLD_",
    "PMIX_RANK", "FP8LAB_CPU_ISA", "GLIBC_TUNABLES", "MALLOC_", "ASAN_OPTIONS",    "TSAN_OPTIONS"};
constexpr std::array<std::string_view, 7> kSecretWords{"KEY", "TOKEN", "SECRET", "PASS", "CRED", "JWT", "AUTH"};

/// The first line of a file, or nothing.
std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

Json line_or_null(const std::string& path) {
  const auto line = first_line(path);
  return line ? Json(*line) : Json(nullptr);
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name") || line.starts_with("Model")) return line.substr(line.find(':') + 2);
  return "unknown";
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1, ::get_nprocs());
}

/// The CPU quota of the cgroup in cores; nothing if there is no quota.
std::optional<double> cgroup_cores() {
  if (const auto line = first_line("/sys/fs/cgroup/cpu.max")) {
    std::istringstream in(*line);
    double quota = 0, period = 0;
    if (in >> quota >> period && period > 0) return quota / period;
    return std::nullopt;
  }
  const auto quota = first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!quota || !period) return std::nullopt;
  const double q = std::atof(quota->c_str()), p = std::atof(period->c_str());
  return q > 0 && p > 0 ? std::optional(q / p) : std::nullopt;
}

Json container() {
  if (std::filesystem::exists("/.dockerenv")) return "docker";
  if (std::filesystem::exists("/run/.containerenv")) return "podman";
  if (std::filesystem::exists("/run/systemd/container")) return line_or_null("/run/systemd/container");
  return nullptr;
}

Json variables() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || !may_record_variable(text.substr(0, equals))) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  Json out = Json::object();
  for (const auto& [name, value] : found) out[name] = value;
  return out;
}

Json devices_json(const std::vector<Term>& devices) {
  Json out = Json::object();
  for (const Term& device : devices) {
    const std::string reason = device.why_unavailable();
    out[device.name] = reason.empty() ? device.describe() : "unavailable: " + reason;
  }
  return out;
}

Json libraries(const BuildInfo& build) {
  Json out{{"glibc", ::gnu_get_libc_version()},
           {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
           {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                         NLOHMANN_JSON_VERSION_PATCH)},
           {"CLI11", CLI11_VERSION}};
  for (const auto& [name, version] : build.libraries) out[name] = version;
  return out;
}

/// The id that the linker made of the program's content, in hex digits; nothing if it made none.
int take_build_id(dl_phdr_info* info, std::size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + part.p_vaddr);
    for (const auto* const end = at + part.p_memsz; at < end;) {
      const auto padded = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
      const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
      const auto* const content = at + sizeof note + padded(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID)
        for (std::size_t k = 0; k < note.n_descsz; ++k)
          *static_cast<std::string*>(out) += fmt::format("{:02x}", content[k]);
      at = content + padded(note.n_descsz);
    }
  }
  return 1;  // the first object is the program
}

/// Two programs of one commit differ if the checkout was modified. Null if the commit is enough.
Json build_id(const BuildInfo& build) {
  std::string id;
  if (build.git_commit.empty() || build.git_dirty) ::dl_iterate_phdr(take_build_id, &id);
  return id.empty() ? Json(nullptr) : Json(id);
}

std::string commit_text(const BuildInfo& build) {
  if (build.git_commit.empty()) return "";
  return fmt::format(" (commit {}{})", build.git_commit.substr(0, 12), build.git_dirty ? ", modified" : "");
}

}  // namespace

bool may_record_variable(const std::string& name) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const std::string_view word : kSecretWords)
    if (upper.find(word) != std::string::npos) return false;
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return upper.starts_with(prefix); });
}

int usable_cores() {
  const int allowed = allowed_cores();
  const auto granted = cgroup_cores();
  return std::max(1, granted ? std::min(allowed, static_cast<int>(std::ceil(*granted))) : allowed);
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string environment_line(const BuildInfo& build) {
  return fmt::format("fp8lab {}{}, {}; {}, {} of {} cores", build.version, commit_text(build), build.compiler,
                     cpu_model(), usable_cores(), ::get_nprocs());
}

std::string environment_json(const BuildInfo& build, const std::vector<Term>& devices) {
  utsname system{};
  ::uname(&system);
  const auto granted = cgroup_cores();
  struct sysinfo memory{};
  ::sysinfo(&memory);
  const Json out{{"program",
                  {{"version", build.version},
                   {"git_commit", build.git_commit.empty() ? Json(nullptr) : Json(build.git_commit)},
                   {"git_dirty", build.git_commit.empty() ? Json(nullptr) : Json(build.git_dirty)},
                   {"build_id", build_id(build)},
                   {"compiler", build.compiler},
                   {"flags", build.flags},
                   {"build_type", build.build_type}}},
                 {"libraries", libraries(build)},
                 {"host",
                  {{"name", system.nodename},
                   {"system", fmt::format("{} {}", system.sysname, system.release)},
                   {"machine", system.machine},
                   {"container", container()},
                   {"memory_bytes", static_cast<std::int64_t>(memory.totalram) * memory.mem_unit},
                   {"cgroup_memory_max", line_or_null("/sys/fs/cgroup/memory.max")}}},
                 {"cpu",
                  {{"model", cpu_model()},
                   {"cores", ::get_nprocs()},
                   {"allowed_cores", allowed_cores()},
                   {"cgroup_cores", granted ? Json(*granted) : Json(nullptr)},
                   {"smt", line_or_null("/sys/devices/system/cpu/smt/active")},
                   {"governor", line_or_null("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")}}},
                 {"devices", devices_json(devices)},
                 {"variables", variables()}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fp8lab
