/* The option parser, and vfm_cmd_init and vfm_cmd_exit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "io/opt.h"

static struct {
	bool force, all;
	int64_t n, size;
	double rate;
	const char *out;
	struct vfm_strlist set;
} o;

static const struct vfm_opt table[] = {
	{VFM_OPT_FLAG, 'f', "force", NULL, "overwrite", &o.force},
	{VFM_OPT_FLAG, 'a', NULL, NULL, "all of them", &o.all},
	{VFM_OPT_INT, 'n', "count", "N", "how many", &o.n},
	{VFM_OPT_GROUP, 0, NULL, NULL, "more:", NULL},
	{VFM_OPT_SIZE, 0, "max-size", "SIZE", "limit", &o.size},
	{VFM_OPT_NUM, 'r', "rate", "X", "rate", &o.rate},
	{VFM_OPT_STR, 'o', "out", "FILE", "where to", &o.out},
	{VFM_OPT_LIST, 's', "set", "KEY=VALUE", "override", &o.set},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-x", .synopsis = "[-fa] [-n N] FILE ...\n--other", .summary = "do something", .opts = table};
static struct vfm_err err;
static char *args[32];
static int n_args, n_operands;

/* Splits "a b c" at blanks. */
static int parse(const char *line)
{
	static char copy[512];

	vfm_strlist_release(&o.set);
	memset(&o, 0, sizeof(o));
	err = (struct vfm_err){0};
	n_operands = -1;
	snprintf(copy, sizeof(copy), "vfm-x %s", line);
	n_args = 0;
	for (char *s = strtok(copy, " "); s; s = strtok(NULL, " "))
		args[n_args++] = s;
	args[n_args] = NULL;
	return vfm_opt_parse(&cmd, n_args, args, &n_operands, &err);
}

static void good(void **state)
{
	(void)state;
	assert_int_equal(parse("-fn4 --rate=-0.5 a -o - b --max-size 3K --set x=1 -sy=2 -- -c --d"), 0);
	assert_true(o.force && !o.all);
	assert_int_equal(o.n, 4);
	assert_true(o.rate == -0.5);
	assert_string_equal(o.out, "-");
	assert_int_equal(o.size, 3072);
	assert_int_equal(o.set.n, 2);
	assert_string_equal(o.set.v[0], "x=1");
	assert_string_equal(o.set.v[1], "y=2");
	assert_int_equal(n_operands, 4);
	assert_string_equal(args[1], "a");
	assert_string_equal(args[2], "b");
	assert_string_equal(args[3], "-c");
	assert_string_equal(args[4], "--d");
	assert_int_equal(parse("-n 4 -n -5"), 0);
	assert_int_equal(o.n, -5);
	assert_int_equal(parse("- -o x"), 0);
	assert_int_equal(n_operands, 1);
	assert_string_equal(args[1], "-");
	assert_int_equal(parse("--out= -af"), 0);
	assert_string_equal(o.out, "");
	assert_true(o.all && o.force);
	assert_int_equal(parse(""), 0);
	assert_int_equal(n_operands, 0);
	assert_int_equal(parse("-q"), 0);
	assert_true(vfm_log_quiet());
	vfm_log_set_quiet(false);
}

static void bad(void **state)
{
	static const struct {
		const char *line, *msg;
	} cases[] = {
		{"--nope", "unknown option '--nope' (vfm-x -h lists them)"},
		{"--cuont 3", "unknown option '--cuont' (did you mean '--count'?)"},
		{"--cou 3", "unknown option '--cou' (did you mean '--count'?)"}, /* no abbreviations */
		{"-z", "unknown option '-z' (vfm-x -h lists them)"},
		{"-fz", "unknown option '-z' (vfm-x -h lists them)"},
		{"-n", "option '-n' needs N"},
		{"--count", "option '--count' needs N"},
		{"-n4x", "option '-n': expected an integer, got '4x'"},
		{"--count=", "option '--count': expected an integer, got ''"},
		{"--max-size 1.5K", "option '--max-size': expected a size (a number, then K, M, G or T), got '1.5K'"},
		{"-r nan", "option '-r': expected a number, got 'nan'"},
		{"--force=1", "option '--force' takes no argument"},
		{"-o --force", "option '-o' needs FILE, got '--force' (write -o--force if that is meant)"},
		{"-o json", "option '-o' needs FILE, and 'json' is a format (write ./json if a path is meant)"},
		{"--out=md", "option '--out' needs FILE, and 'md' is a format (write ./md if a path is meant)"},
		{"--out -- x", "option '--out' needs FILE, got '--' (write --out=-- if that is meant)"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(parse(cases[i].line), VFM_EUSAGE);
		assert_string_equal(err.msg, cases[i].msg);
	}
}

/* The message about an option whose name the command no longer has. */
static void renamed(void **state)
{
	static int64_t context;
	static const char *out, *format;
	static const struct vfm_opt report[] = {{VFM_OPT_WORD, 0, "format", "text|json", "how to print", &format}, {0}};
	static const struct vfm_opt both[] = {{VFM_OPT_WORD, 0, "format", "jsonl|bin", "of the plan", &format},
		{VFM_OPT_STR, 'o', "output", "DIR", "where to", &out},
		{VFM_OPT_SIZE, 0, "context", "TOKENS", "length", &context}, {0}};
	static const struct {
		const char *name, *word, *msg;
		const struct vfm_opt *opts;
	} cases[] = {
		{"vfm-bench step", "-o", "-o is now --format", report},
		{"vfm-bench step", "-qojson", "-o is now --format", report},
		{"vfm-bench step", "--output=json", "--output is now --format", report},
		{"vfm-bench step", "-t", "unknown option '-t' (vfm-bench step -h lists them)", report},
		{"vfm-pack", "-c", "-c is now --context", both},
		{"vfm-pack", "--out=x", "--out is now --output", both},
		{"vfm-train", "--table", "--table is now --format", both},
		{"vfm-train", "-c", "unknown option '-c' (vfm-train -h lists them)", both},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct vfm_cmd c = {.name = cases[i].name, .opts = cases[i].opts};
		char *argv[] = {"x", (char *)(uintptr_t)cases[i].word, "json", NULL};

		assert_int_equal(vfm_opt_parse(&c, 3, argv, &n_operands, &err), VFM_EUSAGE);
		assert_string_equal(err.msg, cases[i].msg);
	}
	vfm_log_set_quiet(false);
	assert_int_equal(vfm_opt_parse(&(struct vfm_cmd){.name = "vfm-pack", .opts = both}, 3,
				 (char *[]){"x", "-o", "dir", NULL}, &n_operands, &err),
		0);
	assert_string_equal(out, "dir");
}

/* Runs fn in a child with stdout at `path`; NULL: a pipe without a reader, "": closed. */
static int status_of(int (*fn)(void), const char *path)
{
	int status, fd[2];
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		freopen("/dev/null", "w", stderr);
		if (!path) {
			if (pipe(fd) != 0)
				_exit(99);
			dup2(fd[1], 1);
			close(fd[0]);
			close(fd[1]);
		} else if (!*path) {
			close(1);
		} else {
			dup2(open(path, O_WRONLY | O_CREAT, 0666), 1);
		}
		vfm_cmd_init("vfm-x");
		_exit(fn());
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int silent(void)
{
	return vfm_cmd_exit(0, NULL);
}
static int says_hello(void)
{
	printf("hello\n");
	return vfm_cmd_exit(0, NULL);
}
static int says_much(void)
{
	for (int i = 0; i < 100000; i++)
		printf("hello\n");
	return vfm_cmd_exit(0, NULL);
}
static int bad_record(void)
{
	printf("hello\n");
	return vfm_cmd_exit(VFM_EINPUT, NULL);
}
static int signalled(void)
{
	return vfm_cmd_exit(VFM_ESIGNAL, NULL);
}
static int pipe_noticed(void)
{
	return vfm_cmd_exit(VFM_EPIPE, NULL);
}

/* A closed descriptor is not reused for a file, and its use fails. */
static int opens_file(void)
{
	char c;

	return open("/dev/null", O_RDONLY) > STDERR_FILENO && write(STDOUT_FILENO, "x", 1) < 0 &&
			read(STDIN_FILENO, &c, 1) < 0
		? 7
		: 8;
}

static int opens_file_without_any(void)
{
	close(STDIN_FILENO);
	close(STDERR_FILENO);
	vfm_cmd_init("vfm-x");
	return opens_file();
}

static void exit_status(void **state)
{
	(void)state;
	assert_int_equal(status_of(silent, "/dev/null"), 0);
	assert_int_equal(status_of(says_hello, "/dev/null"), 0);
	assert_int_equal(status_of(says_hello, "/dev/full"), 3);
	assert_int_equal(status_of(says_much, "/dev/full"), 3);
	assert_int_equal(status_of(says_hello, NULL), 0);
	assert_int_equal(status_of(says_much, NULL), 0);
	assert_int_equal(status_of(silent, ""), 0);
	assert_int_equal(status_of(says_hello, ""), 3);
	assert_int_equal(status_of(opens_file_without_any, ""), 7);
	assert_int_equal(status_of(bad_record, "/dev/null"), 1);
	assert_int_equal(status_of(bad_record, "/dev/full"), 3);
	assert_int_equal(status_of(signalled, "/dev/null"), 75);
	assert_int_equal(status_of(pipe_noticed, "/dev/null"), 0);
}

static void help(void **state)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	vfm_opt_help(&cmd, f);
	fclose(f);
	assert_string_equal(text,
		"usage: vfm-x [-fa] [-n N] FILE ...\n"
		"       vfm-x --other\n"
		"do something\n"
		"\n"
		"  -f, --force          overwrite\n"
		"  -a                   all of them\n"
		"  -n, --count N        how many\n"
		"\n"
		"more:\n"
		"      --max-size SIZE  limit\n"
		"  -r, --rate X         rate\n"
		"  -o, --out FILE       where to\n"
		"  -s, --set KEY=VALUE  override\n"
		"\n"
		"  -q, --quiet          no progress and no notes on stderr\n"
		"  -h, --help           print this and exit\n"
		"  -V, --version        print the version and exit\n"
		"\n"
		"Manual page: man vfm-x\n");
	free(text);
}

static int ran;
static int verb_split(int argc, char **argv, struct vfm_err *e)
{
	(void)e;
	assert_int_equal(argc, 2);
	assert_string_equal(argv[0], "split");
	assert_string_equal(vfm_log_program(), "vfm-curate split");
	assert_string_equal(argv[1], "x");
	ran++;
	return 5;
}

static void verbs(void **state)
{
	static const struct vfm_verb list[] = {{"split", "cut", verb_split}, {0}};
	static const struct vfm_verbs v = {.name = "vfm-curate",
		.word = "STAGE",
		.summary = "curate",
		.example = "vfm-curate split x",
		.list = list};
	char *argv[] = {"vfm-curate", "split", "x", NULL};

	(void)state;
	assert_int_equal(vfm_verbs_run(&v, 3, argv, &err), 5);
	assert_int_equal(ran, 1);
	argv[1] = "slpit";
	assert_int_equal(vfm_verbs_run(&v, 3, argv, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "unknown STAGE 'slpit' (did you mean 'split'?)");
	assert_int_equal(vfm_verbs_run(&v, 1, argv, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good),
		cmocka_unit_test(bad),
		cmocka_unit_test(renamed),
		cmocka_unit_test(exit_status),
		cmocka_unit_test(help),
		cmocka_unit_test(verbs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
