/* process.c - spawns children with pipes, and forks the guardian that kills their groups. */
#include "io/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

#define PIPE_BYTES (1 << 20) /* fewer wake-ups than with 64 KiB */

/* ---- the guardian ---- */

struct guardian_note { /* below PIPE_BUF: written at once */
	pid_t group;
	int add;
};

/* Runs after a fork of a process that may have threads: only async-signal-safe calls. */
static void guard(int fd, const char *dir)
{
	pid_t groups[VFM_GUARDIAN_GROUPS];
	struct guardian_note note;
	int n = 0;

	while (read(fd, &note, sizeof(note)) == (ssize_t)sizeof(note)) {
		if (note.add && n < VFM_GUARDIAN_GROUPS)
			groups[n++] = note.group;
		for (int i = 0; !note.add && i < n; i++)
			if (groups[i] == note.group)
				groups[i--] = groups[--n];
	}
	for (int i = 0; i < n; i++) {
		kill(-groups[i], SIGKILL);
		kill(groups[i], SIGKILL); /* the leader may have joined another group */
	}
	if (!dir)
		_exit(0);
	execl("/bin/rm", "rm", "-rf", "--", dir, (char *)NULL);
	_exit(1);
}

int vfm_guardian_start(struct vfm_guardian *g, const char *dir, struct vfm_err *err)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
	int fd[2];

	*g = (struct vfm_guardian){.fd = -1};
	if (pipe2(fd, O_CLOEXEC) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot make a pipe");
	g->pid = fork();
	if (g->pid < 0) {
		close(fd[0]);
		close(fd[1]);
		return vfm_fail_errno(err, VFM_EENV, "cannot start a process");
	}
	if (g->pid == 0) {
		int null = open("/dev/null", O_RDWR);

		for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
			signal(ignored[i], SIG_IGN);
		setsid();
		prctl(PR_SET_NAME, "vfm-exec-guard");
		for (int i = 0; i < 3; i++) /* it must not hold the pipes of its parent open */
			dup2(null, i);
		dup2(fd[0], 3);
		closefrom(4);
		guard(3, dir);
	}
	close(fd[0]);
	g->fd = fd[1];
	return 0;
}

static void tell_guardian(const struct vfm_guardian *g, struct guardian_note note)
{
	while (g->fd >= 0 && write(g->fd, &note, sizeof(note)) < 0 && errno == EINTR)
		;
}

void vfm_guardian_add(const struct vfm_guardian *g, pid_t group)
{
	tell_guardian(g, (struct guardian_note){group, 1});
}

void vfm_guardian_remove(const struct vfm_guardian *g, pid_t group)
{
	tell_guardian(g, (struct guardian_note){group, 0});
}

void vfm_guardian_end(struct vfm_guardian *g)
{
	if (g->pid <= 0)
		return;
	close(g->fd);
	while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
		;
	*g = (struct vfm_guardian){.fd = -1};
}

/* ---- children ---- */

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Starts argv with pipe ends `ends` as stdin, stdout and stderr.  Returns an errno value. */
static int spawn_group(pid_t *pid, char *const *argv, char *const *env, const int ends[3])
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attr);
	for (int i = 0; i < 3; i++)
		posix_spawn_file_actions_adddup2(&files, ends[i], i);
	posix_spawn_file_actions_addclosefrom_np(&files, 3);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setpgroup(&attr, 0);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	rc = posix_spawnp(pid, argv[0], &files, &attr, argv, env);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	return rc;
}

int vfm_process_start_on(
	struct vfm_process *p, char *const *argv, char *const *env, const int fds[3], struct vfm_err *err)
{
	*p = VFM_PROCESS_NONE;
	errno = spawn_group(&p->pid, argv, env, fds);
	if (errno) {
		p->pid = 0;
		return vfm_fail_errno(err, VFM_EUSAGE, "cannot start '%s'", argv[0]);
	}
	p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	return 0;
}

int vfm_process_start(struct vfm_process *p, char *const *argv, char *const *env, struct vfm_err *err)
{
	int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, rc = 0;

	*p = VFM_PROCESS_NONE;
	for (int i = 0; i < 3 && rc == 0; i++)
		if (pipe2(pipes[i], O_CLOEXEC) != 0)
			rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot start '%s'", argv[0]);
	if (rc == 0)
		rc = vfm_process_start_on(p, argv, env, (int[3]){pipes[0][0], pipes[1][1], pipes[2][1]}, err);
	close_fd(&pipes[0][0]);
	close_fd(&pipes[1][1]);
	close_fd(&pipes[2][1]);
	p->in = pipes[0][1];
	p->out = pipes[1][0];
	p->err_fd = pipes[2][0];
	if (rc < 0) {
		close_fd(&p->in);
		close_fd(&p->out);
		close_fd(&p->err_fd);
		return rc;
	}
	fcntl(p->in, F_SETPIPE_SZ, PIPE_BYTES); /* a limit of the system may refuse it: then it stays smaller */
	fcntl(p->out, F_SETPIPE_SZ, PIPE_BYTES);
	fcntl(p->in, F_SETFL, O_NONBLOCK);
	fcntl(p->out, F_SETFL, O_NONBLOCK);
	fcntl(p->err_fd, F_SETFL, O_NONBLOCK);
	return 0;
}

bool vfm_process_has_ended(const struct vfm_process *p, int *wait_status)
{
	siginfo_t info = {0};

	if (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != p->pid)
		return false;
	*wait_status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
	return true;
}

int vfm_process_kill(struct vfm_process *p)
{
	int status = 0;

	if (p->pid > 0) {
		kill(-p->pid, SIGKILL);
		kill(p->pid, SIGKILL); /* it may have joined another group */
		while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	close_fd(&p->in);
	close_fd(&p->out);
	close_fd(&p->err_fd);
	close_fd(&p->pidfd);
	p->pid = 0;
	return status;
}

void vfm_wait_status_text(int wait_status, char *text, size_t size)
{
	const char *sig = WIFSIGNALED(wait_status) ? sigabbrev_np(WTERMSIG(wait_status)) : NULL;

	if (sig)
		snprintf(text, size, "SIG%s", sig);
	else
		snprintf(text, size, "%s %d", WIFSIGNALED(wait_status) ? "signal" : "status",
			WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
}

void vfm_process_describe(int wait_status, char *text, size_t size)
{
	char end[32];

	vfm_wait_status_text(wait_status, end, sizeof(end));
	snprintf(text, size, "%s %s", WIFSIGNALED(wait_status) ? "was killed by" : "exited with", end);
}

/* ---- words of a command line ---- */

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n';
}

/* Appends the word at *p to b.  Returns the quote that stays open, 0 if none. */
static char read_word(const char **p, struct vfm_buf *b)
{
	const char *s = *p;
	char quote = 0;

	for (; *s && (quote || !is_blank(*s)); s++) {
		if (*s == '\\' && quote != '\'' && s[1] && (!quote || s[1] == '"' || s[1] == '\\'))
			vfm_buf_add(b, ++s, 1);
		else if (!quote && (*s == '\'' || *s == '"'))
			quote = *s;
		else if (quote && *s == quote)
			quote = 0;
		else
			vfm_buf_add(b, s, 1);
	}
	*p = s;
	return quote;
}

char **vfm_exec_words(const char *text, struct vfm_err *err)
{
	char **words = NULL;
	size_t n = 0, cap = 0;

	for (const char *p = text; *p;) {
		struct vfm_buf word = {0};
		char open;

		if (is_blank(*p)) {
			p++;
			continue;
		}
		vfm_buf_add(&word, "", 0);
		open = read_word(&p, &word);
		vfm_grow(&words, &cap, n + 2, sizeof(*words));
		words[n++] = word.data ? word.data : vfm_strdup("");
		words[n] = NULL;
		if (open) {
			vfm_fail(err, VFM_EUSAGE, "the command '%s' has an open %c", text, open);
			vfm_exec_words_free(words);
			return NULL;
		}
	}
	if (n == 0)
		vfm_fail(err, VFM_EUSAGE, "the command is empty");
	return words;
}

void vfm_exec_words_free(char **words)
{
	for (size_t i = 0; words && words[i]; i++)
		free(words[i]);
	free(words);
}

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static bool is_interpreter(const char *name)
{
	return !strcmp(name, "sh") || !strcmp(name, "bash") || !strcmp(name, "dash") || !strncmp(name, "python", 6);
}

const char *vfm_exec_name(char *const *argv)
{
	char *const *word = argv;

	if (!strcmp(last_component(*word), "env"))
		for (word++; *word && (**word == '-' || strchr(*word, '='));)
			word++;
	if (*word && is_interpreter(last_component(*word)) && word[1] && strcmp(word[1], "-c") != 0)
		for (word++; *word && **word == '-';)
			word++;
	return last_component(*word ? *word : argv[0]);
}
