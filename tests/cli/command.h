// Runs the built command and keeps what it said.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace veloxquant::testing_command {

struct Result {
  int code = -1;  ///< exit code, or 128 + signal
  std::string out, err;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

namespace detail {

/// Reads both ends until both are closed. A closed terminal answers with an error, which ends it too.
inline void drain(std::array<std::pair<int, std::string*>, 2> ends) {
  std::array<pollfd, 2> waiting = {pollfd{ends[0].first, POLLIN, 0}, pollfd{ends[1].first, POLLIN, 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0) break;
    for (size_t i = 0; i < 2; ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(waiting[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        ends[i].second->append(buffer, static_cast<size_t>(n));
      } else {
        waiting[i].fd = -1;
      }
    }
  }
}

inline Result spawn(std::vector<std::string> arguments, const Environment& environment, int err_read, int err_write) {
  int out[2];
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::unsetenv("NO_COLOR");
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::dup2(out[1], 1);
    ::dup2(err_write, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err_write);
  Result result;
  drain({std::pair{out[0], &result.out}, std::pair{err_read, &result.err}});
  ::close(out[0]);
  ::close(err_read);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline std::vector<std::string> command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), VQ_COMMAND);
  return arguments;
}

}  // namespace detail

inline Result run(std::vector<std::string> arguments, const Environment& environment = {}) {
  int err[2];
  EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
  return detail::spawn(detail::command(std::move(arguments)), environment, err[0], err[1]);
}

/// The same with a terminal as stderr.
inline Result run_on_terminal(std::vector<std::string> arguments, const Environment& environment = {}) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_GE(master, 0);
  EXPECT_EQ(::grantpt(master) | ::unlockpt(master), 0);
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_GE(slave, 0);
  return detail::spawn(detail::command(std::move(arguments)), environment, master, slave);
}

/// A line for /bin/sh, in which $VQ is the command.
inline Result run_shell(const std::string& line) {
  int err[2];
  EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
  return detail::spawn({"/bin/sh", "-c", line}, {{"VQ", VQ_COMMAND}}, err[0], err[1]);
}

}  // namespace veloxquant::testing_command
