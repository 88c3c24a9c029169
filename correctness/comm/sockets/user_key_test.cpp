#include "comm/sockets/user_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

namespace fs = std::filesystem;

class UserKey : public ::testing::Test {
 protected:
  UserKey() {
    std::string name = (fs::temp_directory_path() / "user-key-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~UserKey() override { fs::remove_all(root_); }

  std::string folder() const { return (root_ / "keys").string(); }
  std::string error() const {
    try {
      (void)user_key(folder());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(UserKey, ProcessesThatComeTogether_GetOneKey) {
  constexpr int kThreads = 16;
  std::vector<std::string> keys(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::string& key : keys) threads.emplace_back([&] { key = user_key(folder()); });
  }
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1u);
  EXPECT_EQ(keys.front().size(), 64u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()), 1) << "no part is left";
  struct stat status{};
  ASSERT_EQ(::stat((folder() + "/key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(UserKey, OfAnotherFolder_Differs) { EXPECT_NE(user_key(folder()), user_key((root_ / "others").string())); }

TEST_F(UserKey, FolderOrFileThatOthersCanReach_IsRefused) {
  (void)user_key(folder());
  fs::permissions(folder(), fs::perms::group_read, fs::perm_options::add);
  EXPECT_NE(error().find("others have access to it"), std::string::npos) << error();
  fs::permissions(folder(), fs::perms::owner_all);
  fs::permissions(folder() + "/key", fs::perms::others_read, fs::perm_options::add);
  EXPECT_NE(error().find("others have access to it"), std::string::npos) << error();
}

TEST_F(UserKey, LinksAndShortFiles_AreRefused) {
  (void)user_key((root_ / "real").string());
  fs::create_directory_symlink(root_ / "real", folder());
  EXPECT_NE(error(), "");
  fs::remove(folder());
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all);
  fs::create_symlink(root_ / "real" / "key", folder() + "/key");
  EXPECT_NE(error(), "");
  fs::remove(folder() + "/key");
  std::ofstream(folder() + "/key") << "short";
  fs::permissions(folder() + "/key", fs::perms::owner_read);
  EXPECT_NE(error().find("is cut short"), std::string::npos) << error();
}

}  // namespace
}  // namespace fp8lab::sockets
