/* opt.c - parses options by their table, prints -h, runs verbs, and closes stdout at the end. */
#include "io/opt.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/num.h"
#include "io/json.h"
#include "io/table.h"
#include "io/task.h"
#include "io/version.h"

void vfm_strlist_add(struct vfm_strlist *l, const char *s)
{
	l->v = vfm_realloc(l->v, (size_t)l->n + 1, sizeof(*l->v));
	l->v[l->n++] = s;
}

void vfm_strlist_release(struct vfm_strlist *l)
{
	free(l->v);
	*l = (struct vfm_strlist){0};
}

/* The options of every command.  Their dst is NULL; the parser identifies them by letter. */
static const struct vfm_opt common[] = {
	{VFM_OPT_FLAG, 'q', "quiet", NULL, "no progress and no notes on stderr", NULL},
	{VFM_OPT_FLAG, 'h', "help", NULL, "print this and exit", NULL},
	{VFM_OPT_FLAG, 'V', "version", NULL, "print the version and exit", NULL},
	{0},
};

/* ---- parsing ----------------------------------------------------------------- */

struct parse {
	const struct vfm_cmd *cmd;
	int argc, at, n_operands;
	char **argv;
	bool done;
	struct vfm_err *err;
};

static const struct vfm_opt *find_option(const struct vfm_cmd *cmd, char letter, const char *name, size_t len)
{
	const struct vfm_opt *tables[2] = {cmd->opts, common};

	for (int t = 0; t < 2; t++)
		for (const struct vfm_opt *o = tables[t]; o && o->type != VFM_OPT_END; o++) {
			if (o->type == VFM_OPT_GROUP)
				continue;
			if (letter ? o->letter == letter
				   : o->name && strlen(o->name) == len && !memcmp(o->name, name, len))
				return o;
		}
	return NULL;
}

/* what: "option" or the word for a verb; dashes: in front of the names.  Takes the names. */
static int fail_unknown(const char *what, const char *dashes, const char *word, struct vfm_strlist *names,
	const char *command, struct vfm_err *err)
{
	const char *near;

	vfm_strlist_add(names, NULL);
	near = vfm_near(word, names->v);
	if (near)
		vfm_fail(err, VFM_EUSAGE, "unknown %s '%s%s' (did you mean '%s%s'?)", what, dashes, word, dashes, near);
	else
		vfm_fail(err, VFM_EUSAGE, "unknown %s '%s%s' (%s -h lists them)", what, dashes, word, command);
	vfm_strlist_release(names);
	return VFM_EUSAGE;
}

/* Options that had another name. */
static const struct {
	const char *command; /* what the name of the command begins with */
	const char *was, *now;
} renamed[] = {
	{"", "-o", "--format"},
	{"", "--output", "--format"},
	{"", "--out", "--output"},
	{"vfm-bench", "-a", "--all"},
	{"vfm-bench plot", "-k", "--key"},
	{"vfm-bench", "-l", "--list"},
	{"vfm-bench", "-L", "--large"},
	{"vfm-bench", "-t", "--threads"},
	{"vfm-bench", "-w", "--window"},
	{"vfm-bench", "-w", "--write"},
	{"vfm-curate report", "--captions", "--texts"},
	{"vfm-ckpt", "-a", "--all"},
	{"vfm-ckpt", "-d", "--depth"},
	{"vfm-ckpt", "-e", "--each"},
	{"vfm-ckpt", "-k", "--keep-last"},
	{"vfm-ckpt", "-n", "--dry-run"},
	{"vfm-ckpt", "-n", "--files"},
	{"vfm-ckpt", "-p", "--part"},
	{"vfm-ckpt", "-r", "--raw"},
	{"vfm-ckpt", "-s", "--scale"},
	{"vfm-ckpt", "-t", "--dtype"},
	{"vfm-curate search", "-k", "--count"},
	{"vfm-curate sheet", "-n", "--max"},
	{"vfm-curate synth", "-n", "--count"},
	{"vfm-curate index", "-w", "--write"},
	{"vfm-pack", "-c", "--context"},
	{"vfm-pack", "-l", "--samples"},
	{"vfm-pack", "-s", "--step"},
	{"vfm-train", "--table", "--format"},
};

/* Reports an unknown option, as "-x" or "--xyz", by its new name.  Returns 0 if this command has none for it. */
static int check_renamed(const struct vfm_cmd *cmd, const char *option, struct vfm_err *err)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(*renamed); i++) {
		const char *now = renamed[i].now;

		if (!strcmp(renamed[i].was, option) &&
			!strncmp(renamed[i].command, cmd->name, strlen(renamed[i].command)) &&
			find_option(cmd, 0, now + 2, strlen(now + 2)))
			return vfm_fail(err, VFM_EUSAGE, "%s is now %s", option, now);
	}
	return 0;
}

static int unknown_long(const struct vfm_cmd *cmd, const char *name, size_t len, struct vfm_err *err)
{
	const struct vfm_opt *tables[2] = {cmd->opts, common};
	struct vfm_strlist names = {0};
	char *option = vfm_strfmt("--%.*s", (int)(len > 200 ? 200 : len), name);
	int rc = check_renamed(cmd, option, err);

	if (rc == 0) {
		for (int t = 0; t < 2; t++)
			for (const struct vfm_opt *o = tables[t]; o && o->type != VFM_OPT_END; o++)
				if (o->type != VFM_OPT_GROUP && o->name)
					vfm_strlist_add(&names, o->name);
		rc = fail_unknown("option", "--", option + 2, &names, cmd->name, err);
	}
	free(option);
	return rc;
}

static void spell_option(const struct vfm_opt *o, bool as_letter, char *s, size_t size)
{
	if (as_letter)
		snprintf(s, size, "-%c", o->letter);
	else
		snprintf(s, size, "--%s", o->name);
}

static void print_version(const char *name)
{
	printf("%.*s %s%s\n", (int)strcspn(name, " "), name, vfm_version(), vfm_version_more ? vfm_version_more() : "");
}

static int set_flag(struct parse *p, const struct vfm_opt *o)
{
	if (o->dst) {
		*(bool *)o->dst = true;
	} else if (o->letter == 'q') {
		vfm_log_set_quiet(true);
	} else {
		if (o->letter == 'h')
			vfm_opt_help(p->cmd, stdout);
		else
			print_version(p->cmd->name);
		p->done = true;
	}
	return 0;
}

static int check_option_range(const struct vfm_opt *o, double x, const char *value, struct vfm_err *err)
{
	const bool above = o->min == VFM_ABOVE_0, below = o->max == VFM_BELOW_1;
	char most[64] = "";

	if (o->min == o->max || (x >= o->min && x <= o->max))
		return 0;
	if (below)
		snprintf(most, sizeof(most), ", less than 1");
	else if (isfinite(o->max))
		snprintf(most, sizeof(most), "%s%.15g", above ? ", at most " : " to ", o->max);
	return vfm_fail(err, VFM_EUSAGE, "expected %s%.15g%s%s, got '%s'", above ? "more than " : "",
		above ? 0 : o->min, !above && (below || isinf(o->max)) ? " or more" : "", most, value);
}

static int find_name(const char *names, const char *value, int *out, struct vfm_err *err)
{
	size_t len;

	*out = 0;
	for (const char *s = names;; s += len + 1, ++*out) {
		len = strcspn(s, "|");
		if (strlen(value) == len && !memcmp(s, value, len))
			return 0;
		if (!s[len])
			return vfm_fail(err, VFM_EUSAGE, "expected %s, got '%s'", names, value);
	}
}

static int set_value(struct parse *p, const struct vfm_opt *o, const char *opt, const char *value)
{
	int rc = 0;

	switch (o->type) {
	case VFM_OPT_INT:
	case VFM_OPT_SIZE:
		rc = o->type == VFM_OPT_INT ? vfm_parse_i64(value, INT64_MIN, INT64_MAX, o->dst, p->err)
					    : vfm_parse_size(value, o->dst, p->err);
		if (rc == 0)
			rc = check_option_range(o, (double)*(int64_t *)o->dst, value, p->err);
		break;
	case VFM_OPT_NUM:
		rc = vfm_parse_f64(value, o->dst, p->err);
		if (rc == 0)
			rc = check_option_range(o, *(double *)o->dst, value, p->err);
		break;
	case VFM_OPT_WORD:
		*(const char **)o->dst = value;
		rc = find_name(o->arg, value, &(int){0}, p->err);
		break;
	case VFM_OPT_NAME:
		rc = find_name(o->arg, value, o->dst, p->err);
		break;
	case VFM_OPT_TEXT:
		if (!vfm_json_takes(value))
			rc = vfm_fail(p->err, VFM_EUSAGE, "'%s' is not UTF-8", value);
		*(const char **)o->dst = value;
		break;
	case VFM_OPT_STR:
		*(const char **)o->dst = value;
		break;
	case VFM_OPT_LIST:
		vfm_strlist_add(o->dst, value);
		break;
	case VFM_OPT_END:
	case VFM_OPT_FLAG:
	case VFM_OPT_GROUP:
		break;
	}
	return rc < 0 ? vfm_err_context(p->err, "option '%s'", opt), VFM_EUSAGE : 0;
}

/* -o was a format in some commands: "-o json" must not write a file of that name. */
static int check_path(const struct vfm_opt *o, const char *opt, const char *value, struct vfm_err *err)
{
	struct vfm_err unknown;

	if (o->letter != 'o' || find_name(VFM_TABLE_FORMATS, value, &(int){0}, &unknown) < 0)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "option '%s' needs %s, and '%s' is a format (write ./%s if a path is meant)",
		opt, o->arg, value, value);
}

/* `value`: the rest of the same word, or NULL. */
static int apply_option(struct parse *p, const struct vfm_opt *o, bool as_letter, const char *value)
{
	char opt[128];
	const char *arg = o->arg ? o->arg : "an argument";

	spell_option(o, as_letter, opt, sizeof(opt));
	if (!value) {
		if (p->at + 1 >= p->argc)
			return vfm_fail(p->err, VFM_EUSAGE, "option '%s' needs %s", opt, arg);
		value = p->argv[++p->at];
		/* In "--output --seed 1" the argument of --output is probably missing. */
		if (value[0] == '-' && value[1] == '-')
			return vfm_fail(p->err, VFM_EUSAGE,
				"option '%s' needs %s, got '%s' (write %s%s%s if that is meant)", opt, arg, value, opt,
				as_letter ? "" : "=", value);
	}
	TRY(check_path(o, opt, value, p->err));
	return set_value(p, o, opt, value);
}

static int parse_long_option(struct parse *p, const char *word)
{
	const char *name = word + 2, *eq = strchr(name, '=');
	size_t len = eq ? (size_t)(eq - name) : strlen(name);
	const struct vfm_opt *o = find_option(p->cmd, 0, name, len);

	if (!o)
		return unknown_long(p->cmd, name, len, p->err);
	if (o->type != VFM_OPT_FLAG)
		return apply_option(p, o, false, eq ? eq + 1 : NULL);
	if (eq)
		return vfm_fail(p->err, VFM_EUSAGE, "option '--%s' takes no argument", o->name);
	return set_flag(p, o);
}

static int parse_letters(struct parse *p, const char *word)
{
	for (const char *s = word + 1; *s && !p->done; s++) {
		const struct vfm_opt *o = find_option(p->cmd, *s, NULL, 0);

		if (!o) {
			TRY(check_renamed(p->cmd, (char[]){'-', *s, 0}, p->err));
			return vfm_fail(
				p->err, VFM_EUSAGE, "unknown option '-%c' (%s -h lists them)", *s, p->cmd->name);
		}
		if (o->type != VFM_OPT_FLAG)
			return apply_option(p, o, true, s[1] ? s + 1 : NULL);
		TRY(set_flag(p, o));
	}
	return 0;
}

static int check_required(const struct vfm_cmd *cmd, struct vfm_err *err)
{
	char opt[128];

	for (const struct vfm_opt *o = cmd->opts; o && o->type != VFM_OPT_END; o++)
		if (o->required && !*(const char **)o->dst) {
			spell_option(o, o->letter, opt, sizeof(opt));
			return vfm_fail(err, VFM_EUSAGE, "%s %s is missing: %s", opt, o->arg, o->help);
		}
	return 0;
}

/* Says on stderr what a command is that was given nothing; of several tasks, the first does. */
static int introduce(const char *name, const char *summary, const char *example, struct vfm_err *err)
{
	struct vfm_task task;

	if (vfm_task_read(&task, NULL) < 0 || task.number == 0)
		fprintf(stderr, "%s: %s\nusual call: %s\nmore: %s -h, man %s\n", name, summary, example, name, name);
	return vfm_fail(err, VFM_EUSAGE, "%s", "");
}

/* Set while a verb describes itself. */
static struct {
	void (*see)(const struct vfm_cmd *cmd, void *ctx);
	void *ctx;
} describing;

int vfm_opt_parse(const struct vfm_cmd *cmd, int argc, char **argv, int *n_operands, struct vfm_err *err)
{
	struct parse p = {.cmd = cmd, .argc = argc, .at = 1, .argv = argv, .err = err};
	bool only_operands = false;

	if (describing.see) {
		describing.see(cmd, describing.ctx);
		return VFM_OPT_DONE;
	}
	if (argc == 1 && cmd->example)
		return introduce(cmd->name, cmd->summary, cmd->example, err);
	for (; p.at < argc; p.at++) {
		char *word = argv[p.at];

		if (only_operands || word[0] != '-' || !word[1])
			argv[++p.n_operands] = word;
		else if (strcmp(word, "--") == 0)
			only_operands = true;
		else
			TRY(word[1] == '-' ? parse_long_option(&p, word) : parse_letters(&p, word));
		if (p.done)
			return VFM_OPT_DONE;
	}
	*n_operands = p.n_operands;
	if (cmd->no_operands && p.n_operands)
		return vfm_fail(err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	return check_required(cmd, err);
}

/* ---- help -------------------------------------------------------------------- */

static int left_column(const struct vfm_opt *o, char *s, size_t size)
{
	const char *arg = o->arg ? o->arg : "", *sep = o->arg ? " " : "";

	if (o->letter && o->name)
		return snprintf(s, size, "  -%c, --%s%s%s", o->letter, o->name, sep, arg);
	if (o->name)
		return snprintf(s, size, "      --%s%s%s", o->name, sep, arg);
	return snprintf(s, size, "  -%c%s%s", o->letter, sep, arg);
}

static bool is_shadowed(const struct vfm_cmd *cmd, const struct vfm_opt *o)
{
	return find_option(cmd, 0, o->name, strlen(o->name)) != o;
}

/* Of the verb that runs: whether the verbs of its command have manual pages of their own. */
static bool verbs_have_pages;

static void print_manual(const char *name, FILE *out)
{
	size_t n = verbs_have_pages ? strlen(name) : strcspn(name, " ");

	fprintf(out, "\nManual page: man ");
	for (size_t i = 0; i < n; i++)
		fputc(name[i] == ' ' ? '-' : name[i], out);
	fputc('\n', out);
}

void vfm_opt_help(const struct vfm_cmd *cmd, FILE *out)
{
	const struct vfm_opt *tables[2] = {cmd->opts, common};
	const char *s = cmd->synopsis;
	char left[160];
	int width = 0;

	for (const char *lead = "usage: "; s && *s; lead = "       ") {
		size_t n = strcspn(s, "\n");

		fprintf(out, "%s%s%s%.*s\n", lead, cmd->name, n ? " " : "", (int)n, s);
		s += n + (s[n] == '\n');
	}
	if (!cmd->synopsis || !*cmd->synopsis)
		fprintf(out, "usage: %s\n", cmd->name);
	fprintf(out, "%s\n", cmd->summary);
	for (int t = 0; t < 2; t++)
		for (const struct vfm_opt *o = tables[t]; o && o->type != VFM_OPT_END; o++) {
			int n = o->type == VFM_OPT_GROUP ? 0 : left_column(o, left, sizeof(left));

			if (n > width)
				width = n;
		}
	if (width > 34)
		width = 34;
	for (int t = 0; t < 2; t++) {
		if (!tables[t] || tables[t]->type != VFM_OPT_GROUP)
			fputc('\n', out);
		for (const struct vfm_opt *o = tables[t]; o && o->type != VFM_OPT_END; o++) {
			if (o->type == VFM_OPT_GROUP) {
				fprintf(out, "\n%s\n", o->help);
				continue;
			}
			if (t == 1 && is_shadowed(cmd, o))
				continue;
			if (left_column(o, left, sizeof(left)) > width)
				fprintf(out, "%s\n%*s  %s\n", left, width, "", o->help);
			else
				fprintf(out, "%-*s  %s\n", width, left, o->help);
		}
	}
	print_manual(cmd->name, out);
}

/* ---- verbs ------------------------------------------------------------------- */

static void print_verbs(const struct vfm_verbs *v)
{
	int width = 0;

	printf("usage: %s %s [OPTION ...] [OPERAND ...]\n%s\n\n", v->name, v->word, v->summary);
	for (const struct vfm_verb *o = v->list; o->name; o++)
		if ((int)strlen(o->name) > width)
			width = (int)strlen(o->name);
	for (const struct vfm_verb *o = v->list; o->name; o++)
		printf("  %-*s  %s\n", width, o->name, o->summary);
	printf("\n  -h, --help     print this and exit; after %s: its options\n", v->word);
	printf("  -V, --version  print the version and exit\n");
	print_manual(v->name, stdout);
}

void vfm_verb_describe(const struct vfm_verb *v, void (*see)(const struct vfm_cmd *cmd, void *ctx), void *ctx)
{
	char *argv[2] = {(char *)(uintptr_t)v->name, NULL};
	struct vfm_err err;

	describing.see = see;
	describing.ctx = ctx;
	v->run(1, argv, &err);
	describing.see = NULL;
}

static int unknown_verb(const struct vfm_verbs *v, const char *word, struct vfm_err *err)
{
	struct vfm_strlist names = {0};

	for (const struct vfm_verb *o = v->list; o->name; o++)
		vfm_strlist_add(&names, o->name);
	return fail_unknown(v->word, "", word, &names, v->name, err);
}

int vfm_verbs_run(const struct vfm_verbs *v, int argc, char **argv, struct vfm_err *err)
{
	const char *word = argc > 1 ? argv[1] : NULL;

	if (!word)
		return introduce(v->name, v->summary, v->example, err);
	if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
		print_verbs(v);
		return VFM_OPT_DONE;
	}
	if (!strcmp(word, "-V") || !strcmp(word, "--version")) {
		print_version(v->name);
		return VFM_OPT_DONE;
	}
	for (const struct vfm_verb *o = v->list; o->name; o++) {
		if (strcmp(o->name, word) != 0)
			continue;
		verbs_have_pages = v->pages;
		vfm_log_init(vfm_strfmt("%s %s", v->name, word)); /* kept for the life of the process */
		return o->run(argc - 1, argv + 1, err);
	}
	return unknown_verb(v, word, err);
}

/* ---- the frame of main ------------------------------------------------------- */

/* Opens those of the first three descriptors that are closed.  Otherwise the next opened file would get such a number,
 * and receive messages or output.  They are opened in the wrong direction, so that using them fails. */
static void open_standard_descriptors(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
			_exit(-VFM_EENV); /* there is no descriptor for a message */
}

void vfm_cmd_init(const char *argv0)
{
	open_standard_descriptors();
	vfm_log_init(argv0);
	vfm_map_catch_faults();
	vfm_json_init();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
}

int vfm_cmd_exit(int rc, const struct vfm_err *err)
{
	bool failed;
	int why;

	if (rc < 0 && rc != VFM_EPIPE && err && err->msg[0])
		vfm_error("%s", err->msg);
	errno = 0;
	failed = ferror(stdout);
	if (fflush(stdout) != 0)
		failed = true;
	why = errno;
	if (fclose(stdout) != 0 && !failed) {
		failed = true;
		why = errno;
	}
	if (failed && why != EPIPE && rc != VFM_EPIPE && rc != VFM_EENV) {
		vfm_error("cannot write stdout: %s", strerror(why ? why : EIO));
		if (rc >= VFM_EINPUT)
			rc = VFM_EENV;
	}
	return rc >= 0 || rc == VFM_EPIPE ? 0 : -rc;
}
