/* ahead.c - finds the later stages of a pipe in /proc, and keeps their results in records. */
#include "data/record/ahead.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/record/stage_link.h"

enum {
	MAX_BYTES = 1 << 16, /* of a command line */
	MAX_WORDS = 1024,
	TRIES = 20,
	TRY_MS = 5,
};

/* ---- processes ---- */

/* Reads the target of a link in /proc/PID; pid 0 is this process.  Returns whether it is known. */
static bool read_proc_link(long pid, const char *name, char *text, size_t size)
{
	char path[64];
	ssize_t n;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%ld/%s", pid, name);
	else
		snprintf(path, sizeof(path), "/proc/self/%s", name);
	n = readlink(path, text, size - 1);
	if (n < 0)
		return false;
	text[n] = 0;
	return true;
}

static bool same_proc_link(long a, long b, const char *name)
{
	char x[4096], y[4096];

	return read_proc_link(a, name, x, sizeof(x)) && read_proc_link(b, name, y, sizeof(y)) && !strcmp(x, y);
}

enum pipe_reader { NO_READER, STARTING, FOUND };

/* Finds the process of this program that reads a pipe ("pipe:[123]") as its standard input. */
static enum pipe_reader find_reader(const char *pipe, long *pid)
{
	enum pipe_reader found = NO_READER;
	DIR *proc = opendir("/proc");
	char in[64];

	for (struct dirent *e; proc && found != FOUND && (e = readdir(proc));) {
		long id = isdigit((unsigned char)e->d_name[0]) ? strtol(e->d_name, NULL, 10) : 0;

		if (id <= 0 || id == getpid() || !read_proc_link(id, "fd/0", in, sizeof(in)) || strcmp(in, pipe) != 0)
			continue;
		if (same_proc_link(id, 0, "exe")) {
			found = FOUND;
			*pid = id;
		} else if (same_proc_link(id, getppid(), "exe")) { /* a shell before exec */
			found = STARTING;
		}
	}
	if (proc)
		closedir(proc);
	return found;
}

/* Appends the command line of a process, without the name of the program.  Returns whether it is a stage. */
static bool add_process(struct vfm_later_stages *l, long pid)
{
	char path[64], *text = vfm_malloc(MAX_BYTES), *argv[MAX_WORDS];
	ssize_t n = -1;
	int fd, argc = 0;

	snprintf(path, sizeof(path), "/proc/%ld/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, MAX_BYTES);
		close(fd);
	}
	if (n > 0 && n < MAX_BYTES && text[n - 1] == 0)
		for (char *arg = text; arg < text + n && argc < MAX_WORDS; arg += strlen(arg) + 1)
			argv[argc++] = arg;
	if (argc >= 2 && argc < MAX_WORDS)
		vfm_later_stages_add(l, argc - 1, argv + 1);
	free(text);
	return argc >= 2 && argc < MAX_WORDS;
}

static void find_in_pipe(struct vfm_later_stages *l)
{
	char out[64] = "";
	long pid = 0;
	int tries = TRIES;

	while (l->n < VFM_PROGRESS_STAGES && read_proc_link(pid, "fd/1", out, sizeof(out)) &&
		!strncmp(out, "pipe:", 5)) {
		enum pipe_reader found;
		long next = 0;

		while ((found = find_reader(out, &next)) == STARTING && tries-- > 0)
			nanosleep(&(struct timespec){0, TRY_MS * 1000000L}, NULL);
		if (found != FOUND || !same_proc_link(next, 0, "cwd") || !add_process(l, next))
			break;
		pid = next;
	}
}

/* ---- stages ---- */

void vfm_later_stages_find(struct vfm_later_stages *l)
{
	const struct vfm_stage_link *k = vfm_stage_link();

	*l = (struct vfm_later_stages){0};
	if (!k)
		find_in_pipe(l);
	else if (k->later)
		for (int i = 0; i < k->later->n; i++)
			vfm_later_stages_add(l, k->later->stage[i].argc, k->later->stage[i].argv);
}

void vfm_later_stages_add(struct vfm_later_stages *l, int argc, char *const *argv)
{
	struct vfm_later_stage *s;

	l->stage = vfm_realloc(l->stage, (size_t)l->n + 1, sizeof(l->stage[0]));
	s = &l->stage[l->n++];
	*s = (struct vfm_later_stage){.argv = vfm_calloc((size_t)argc + 1, sizeof(s->argv[0]))};
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], "-q") != 0 && strcmp(argv[i], "--quiet") != 0)
			s->argv[s->argc++] = vfm_strdup(argv[i]);
}

void vfm_later_stages_release(struct vfm_later_stages *l)
{
	for (int i = 0; i < l->n; i++) {
		for (int k = 0; k < l->stage[i].argc; k++)
			free(l->stage[i].argv[k]);
		free(l->stage[i].argv);
	}
	free(l->stage);
	*l = (struct vfm_later_stages){0};
}

/* ---- records ---- */

bool vfm_ahead_ends_here(void)
{
	const struct vfm_stage_link *k = vfm_stage_link();
	struct stat out;

	if (k)
		return !k->later || k->later->n == 0;
	return fstat(STDOUT_FILENO, &out) != 0 || !S_ISFIFO(out.st_mode);
}

json_t *vfm_ahead_take(json_t *rec, const char *stage)
{
	json_t *ahead = json_object_get(rec, VFM_AHEAD_KEY), *result = json_incref(json_object_get(ahead, stage));

	json_object_del(ahead, stage);
	if (json_is_object(ahead) && json_object_size(ahead) == 0)
		json_object_del(rec, VFM_AHEAD_KEY);
	return result;
}

void vfm_ahead_put(json_t *rec, const char *stage, json_t *result)
{
	json_t *ahead = json_object_get(rec, VFM_AHEAD_KEY);

	if (!json_is_object(ahead)) {
		ahead = json_object();
		json_object_set_new(rec, VFM_AHEAD_KEY, ahead);
	}
	json_object_set_new(ahead, stage, result);
}
