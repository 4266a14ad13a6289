/* document.c - chooses the parser of a configuration; runs that of TOML. */
#include "io/document.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/installed.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"
#include "io/process.h"
#include "io/yaml.h"

enum { TOML_GROWTH = 16, TOML_MESSAGE = 2000, TOML_REFUSED = 2 };

/* ---- TOML ---- */

/* Runs the reader with the files fds [3] as its stdin, stdout and stderr. */
static int run_toml_reader(const char *path, const int fds[3], int *wait_status, struct vfm_err *err)
{
	char *argv[] = {vfm_strdup("config_toml.py"), vfm_strdup(path), NULL};
	struct vfm_process p;
	int rc;

	vfm_installed_use("exec", argv);
	rc = vfm_process_start_on(&p, argv, environ, fds, err);
	if (rc < 0)
		vfm_err_context(err, "'%s' is TOML, whose reader is share/exec/config_toml.py", path);
	while (rc == 0 && !vfm_process_has_ended(&p, wait_status))
		poll(&(struct pollfd){.fd = p.pidfd, .events = POLLIN}, 1, 20);
	if (rc == 0)
		vfm_process_kill(&p);
	free(argv[0]);
	free(argv[1]);
	return rc;
}

/* Returns the contents of a file, at most `max` bytes and a NUL; the caller frees it. */
static char *read_back(int fd, size_t max, size_t *len)
{
	off_t size = lseek(fd, 0, SEEK_END);
	char *text;

	*len = size < 0 ? 0 : (size_t)size < max ? (size_t)size : max;
	text = vfm_calloc(1, *len + 1);
	if (pread(fd, text, *len, 0) != (ssize_t)*len)
		*len = 0;
	return text;
}

/* The reader has failed: its last line says why. */
static void fail_toml(const char *path, int wait_status, int fd, struct vfm_err *err)
{
	size_t len;
	char *text = read_back(fd, TOML_MESSAGE, &len), *line, how[64];

	while (len && text[len - 1] == '\n')
		text[--len] = '\0';
	line = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
	vfm_process_describe(wait_status, how, sizeof(how));
	if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == TOML_REFUSED)
		vfm_fail(err, VFM_EUSAGE, "%s", line);
	else
		vfm_fail(err, VFM_EENV, "'%s': the reader of TOML, config_toml.py, %s%s%s", path, how,
			*line ? ": " : "", line);
	free(text);
}

static json_t *parse_toml(const char *text, size_t len, size_t max, const char *path, struct vfm_err *err)
{
	int fds[3] = {-1, -1, -1}, status = 0, rc = 0;
	json_t *all = NULL;

	for (int i = 0; i < 3 && rc == 0; i++) {
		fds[i] = memfd_create("toml", MFD_CLOEXEC);
		rc = fds[i] < 0 ? vfm_fail_errno(err, VFM_EENV, "'%s': no memory for a parser of TOML", path) : 0;
	}
	if (rc == 0 && (pwrite(fds[0], text, len, 0) != (ssize_t)len))
		rc = vfm_fail_errno(err, VFM_EENV, "'%s': no memory for a parser of TOML", path);
	if (rc == 0)
		rc = run_toml_reader(path, fds, &status, err);
	if (rc == 0 && status != 0) {
		fail_toml(path, status, fds[2], err);
	} else if (rc == 0) {
		size_t n;
		char *json = read_back(fds[1], TOML_GROWTH * max, &n);

		all = vfm_json_parse(json, n, path, err);
		free(json);
	}
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return all;
}

/* ---- by name ---- */

static bool ends_in_toml(const char *path)
{
	size_t n = strlen(path);

	return n >= 5 && strcmp(path + n - 5, ".toml") == 0;
}

json_t *vfm_document_load(const char *path, size_t max, struct vfm_err *err)
{
	bool is_toml = ends_in_toml(path);
	struct vfm_err ignored;
	json_t *all = NULL;
	char *text;
	size_t len;
	int rc;

	err = err ? err : &ignored;
	if (!is_toml && !vfm_yaml_is_name(path))
		return vfm_json_load(path, max, err);
	rc = vfm_read_file(path, max, &text, &len, err);
	if (rc < 0) {
		err->code = rc == VFM_EINPUT ? VFM_EUSAGE : rc;
		return NULL;
	}
	all = is_toml ? parse_toml(text, len, max, path, err) : vfm_yaml_parse(text, len, path, err);
	free(text);
	return all;
}
