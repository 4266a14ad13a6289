/* html.c - escapes text, and writes the page's frame, cards, tables and pictures. */
#include "media/draw/html.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "media/draw/png.h"

static const char style[] =
	":root{--ink:#1c2430;--dim:#667085;--line:#e4e7ec;--soft:#f6f7f9;--blue:#2f6fde;--red:#c8372d;"
	"--amber:#b7791f;--green:#2b8a57;--page:#fff}\n"
	"@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#98a2b3;--line:#2d3543;--soft:#1b212c;"
	"--blue:#6fa0f5;--red:#f0766c;--amber:#e0a94a;--green:#5cc48d;--page:#12161d}}\n"
	"*{box-sizing:border-box}\n"
	"body{margin:0 auto;max-width:1180px;padding:28px 24px 60px;background:var(--page);color:var(--ink);"
	"overflow-wrap:break-word;font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
	"h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}\n"
	"h2{font-size:18px;margin:38px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--line)}\n"
	"h3{font-size:15px;margin:0 0 4px}h3 span{font-size:12px;font-weight:400}section>h3,section>div>h3{margin:30px "
	"0 "
	"8px;font-size:16px}\n"
	"a{color:var(--blue)}summary{cursor:pointer;margin:12px 0}\n"
	".dim{color:var(--dim)}.small{font-size:12px;margin:4px 0}.state{font-weight:600}.runs{color:var(--blue)}"
	".done{color:var(--green)}.stopped{color:var(--amber)}.failed{color:var(--red)}\n"
	/* tables */
	"table{border-collapse:collapse;width:100%}th{font-weight:600;color:var(--dim);font-size:13px;text-align:left}"
	"tr:only-child::after{content:'none';color:var(--dim)}"
	"td p{margin:0 0 4px}td,th{padding:6px 10px;border-bottom:1px solid "
	"var(--line);vertical-align:top;overflow-wrap:anywhere}"
	"th{overflow-wrap:normal}.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
	".ends{display:flex;justify-content:space-between;font-size:11px;"
	"color:var(--dim)}"
	".rows td,.rows th{padding:3px;font-size:11px;max-width:180px;overflow-wrap:break-word}"
	".rows th{white-space:normal;font-size:10px;vertical-align:bottom}\n"
	/* as wide as the window, beyond the margins of the page */
	".full{width:calc(100vw - 64px);margin-left:calc(50% - 50vw + 32px)}.wide{overflow-x:auto}\n"
	/* boxes */
	".cards,.grid,.charts,.shots,.pair{display:grid;gap:12px}"
	".cards{grid-template-columns:repeat(auto-fill,minmax(150px,1fr));margin:18px 0}"
	".grid{grid-template-columns:repeat(auto-fill,minmax(330px,1fr));align-items:start}"
	".charts{grid-template-columns:repeat(auto-fill,minmax(min(460px,100%),1fr))}"
	".shots{grid-template-columns:repeat(auto-fill,minmax(170px,1fr))}.pair{grid-template-columns:1fr 1fr}\n"
	".card,.box{background:var(--soft);border:1px solid var(--line);border-radius:8px;padding:10px 14px}"
	".card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.card small{font-size:13px}\n"
	".bar{height:9px;margin-top:7px;border-radius:5px;background:var(--line);overflow:hidden;min-width:160px}"
	".bar i{display:block;height:100%;background:var(--blue)}\n"
	/* pictures */
	"figure{margin:0;min-width:0;overflow-wrap:anywhere}figure p{margin:0;font-size:12px}"
	"figcaption{font-size:12px;color:var(--dim);margin-top:6px}figcaption span{white-space:nowrap}\n"
	"img,figure p.none{display:block;width:100%;height:130px;object-fit:contain;border-radius:4px;"
	"background:var(--line)}figure p.none{padding:8px;overflow:hidden}\n"
	".sheet{display:grid;gap:12px}.marked{border-color:var(--red)}.strip{display:flex;gap:2px}"
	".strip img{width:auto;height:auto;min-width:0}\n"
	/* drawings */
	"svg{display:block;width:100%;height:auto}svg text{fill:var(--dim);font-size:10px}"
	"svg line{stroke:var(--line)}"
	"svg path{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
	"svg path.pale{stroke-width:1;opacity:.32}svg path.mark{stroke-width:1;stroke-dasharray:1 4;opacity:.8}"
	"svg path.dashed{stroke-dasharray:6 3}svg path.limit{stroke:var(--red)}\n"
	/* bars that are links, and the lists that they show */
	"svg a rect{fill:transparent}svg a[href]:hover rect,svg a[href]:focus rect{fill:var(--line)}"
	".bin{display:none}.bin:target{display:block;margin:8px 0;scroll-margin-top:300px;padding:8px "
	"12px;border-left:3px solid var(--blue);"
	"background:var(--soft);font-size:13px}.bin>a{float:right}.bin ul,ul.small{margin:4px 0;padding-left:18px}"
	"h4{margin:0;font-size:14px}h4 span{font-weight:400;font-size:12px}"
	".accounts{grid-template-columns:repeat(auto-fit,minmax(190px,1fr))}"
	"nav{font-size:13px}nav a{margin-right:14px;white-space:nowrap}"
	".grid section{padding-right:16px}"
	".sums td:first-child{min-width:190px}.sums td:last-child{min-width:170px}"
	".number{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,7fr);gap:16px;padding:14px 0;"
	"border-bottom:1px solid var(--line)}.number .shots{grid-template-columns:repeat(3,minmax(0,1fr));gap:8px}"
	".number img,.number p.none{height:90px}.number .box{padding:6px}"
	"@media(max-width:760px){.number{grid-template-columns:minmax(0,1fr)}}\n"
	"svg.swatch{display:inline-block;width:22px;height:10px;vertical-align:baseline}svg.swatch path{stroke-width:3}"
	".legend{margin:2px 0 6px;font-size:12px;color:var(--dim);overflow-wrap:anywhere}"
	".legend span{display:inline-block;margin-right:10px}"
	".legend b{color:var(--ink);font-variant-numeric:tabular-nums}\n";

/* ---- text ---- */

/* The bytes of the UTF-8 character at s, or 0. */
static int character_bytes(const unsigned char *s)
{
	int n = *s < 0x80                 ? 1
		: *s >= 0xc2 && *s < 0xe0 ? 2
		: *s >= 0xe0 && *s < 0xf0 ? 3
		: *s >= 0xf0 && *s < 0xf5 ? 4
					  : 0;

	for (int i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

static void add_escaped(struct vfm_buf *b, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	while (*s) {
		int n = character_bytes(s);
		const char *as = *s == '&'                                                ? "&amp;"
			: *s == '<'                                                       ? "&lt;"
			: *s == '>'                                                       ? "&gt;"
			: *s == '"'                                                       ? "&quot;"
			: *s == '\''                                                      ? "&#39;"
			: n == 0 || *s == 0x7f || (*s < 0x20 && *s != '\n' && *s != '\t') ? "\xef\xbf\xbd"
											  : NULL;

		if (as)
			vfm_buf_adds(b, as);
		else
			vfm_buf_add(b, s, (size_t)n);
		s += n ? n : 1;
	}
}

static void add_thousands(struct vfm_buf *b, const char *digits)
{
	size_t n = strlen(digits);

	for (size_t i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0 && digits[i - 1] != '-')
			vfm_buf_adds(b, "\u202f");
		vfm_buf_add(b, digits + i, 1);
	}
}

/* Appends what the conversion at s makes of its argument.  Returns the text after it. */
static const char *add_conversion(struct vfm_buf *b, const char *s, va_list *ap)
{
	char spec[64], *text = NULL;
	const char *string;
	size_t n = 0;
	bool grouped = false;

	for (spec[n++] = *s++; *s && strchr("-+ 0'.123456789*lz", *s); s++) {
		if (*s == '*')
			n += (size_t)snprintf(spec + n, sizeof(spec) - n, "%d", va_arg(*ap, int));
		else if (*s == '\'')
			grouped = true;
		else
			spec[n++] = *s;
	}
	spec[n] = *s;
	spec[n + 1] = 0;
	switch (*s) {
	case '%':
		vfm_buf_adds(b, "%");
		return s + 1;
	case 's':
		string = va_arg(*ap, const char *);
		if (string)
			text = vfm_strfmt(spec, string);
		else
			vfm_buf_adds(b, "&ndash;");
		break;
	case 'd':
		text = spec[n - 1] == 'l' ? vfm_strfmt(spec, va_arg(*ap, long long))
					  : vfm_strfmt(spec, va_arg(*ap, int));
		break;
	case 'u':
		text = vfm_strfmt(spec, va_arg(*ap, size_t));
		break;
	default: /* f, g */
		text = vfm_strfmt(spec, va_arg(*ap, double));
	}
	if (text && grouped)
		add_thousands(b, text);
	else if (text)
		add_escaped(b, text);
	free(text);
	return s + 1;
}

/* Appends a format to its end, or to the "|" of a cell. */
static const char *add_format(struct vfm_buf *b, const char *format, bool cell, va_list *ap)
{
	while (*format && !(cell && *format == '|')) {
		size_t n = strcspn(format, cell ? "%|" : "%");

		vfm_buf_add(b, format, n);
		format += n;
		if (*format == '%')
			format = add_conversion(b, format, ap);
	}
	return format;
}

void vfm_html_addf(struct vfm_buf *b, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	add_format(b, format, false, &ap);
	va_end(ap);
}

void vfm_html_url(struct vfm_buf *b, const char *path)
{
	for (const unsigned char *s = (const unsigned char *)path; *s; s++)
		vfm_buf_addf(b, isalnum(*s) || strchr("-._~/", *s) ? "%c" : "%%%02X", *s);
}

void vfm_html_relative_url(struct vfm_buf *b, const char *from, const char *file)
{
	size_t same = 0, i = 0, end = strlen(from); /* same: bytes of the folders that both paths begin with */

	for (; from[i] && from[i] == file[i]; i++)
		if (from[i] == '/')
			same = i + 1;
	if (!from[i] && file[i] == '/')
		same = i + 1;
	for (const char *s = from + (same < end ? same : end); *s;) {
		vfm_buf_adds(b, "../");
		s += strcspn(s, "/");
		s += *s == '/';
	}
	vfm_html_url(b, file + same);
}

const char *vfm_html_number(char text[VFM_NUMBER_TEXT], double x)
{
	static const char *const suffix[] = {"", "k", "M", "G", "T"};
	int k = 0;

	for (; fabs(x) >= 9999.5 && k < 4; k++)
		x /= 1000;
	snprintf(text, VFM_NUMBER_TEXT, "%.4g%s", x, suffix[k]);
	return isfinite(x) ? text : NULL;
}

/* ---- the page ---- */

void vfm_html_begin(struct vfm_buf *b, const char *title, int refresh_s)
{
	vfm_buf_adds(b,
		"<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
		"<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; img-src data:; "
		"style-src 'unsafe-inline'\">\n"
		"<meta name=viewport content='width=device-width,initial-scale=1'>\n");
	if (refresh_s > 0)
		vfm_html_addf(b, "<meta http-equiv=refresh content=%d>\n", refresh_s);
	vfm_html_addf(b, "<title>%s</title>\n<style>\n", title);
	vfm_buf_adds(b, style);
	vfm_html_palette(b);
	vfm_html_addf(b, "</style></head>\n<body>\n<h1>%s</h1>\n", title);
}

void vfm_html_end(struct vfm_buf *b)
{
	vfm_buf_adds(b, "</body></html>\n");
}

static void add_bar(struct vfm_buf *b, double share)
{
	vfm_html_addf(b, "<div class=bar><i style='width:%.1f%%'></i></div>", 100 * fmin(1, fmax(0, share)));
}

void vfm_html_card(struct vfm_buf *b, const char *name, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vfm_html_addf(b, "<div class=card><span class=dim>%s</span><b>", name);
	add_format(b, format, false, &ap);
	vfm_buf_adds(b, "</b></div>\n");
	va_end(ap);
}

static void add_cells(struct vfm_buf *b, const char *tag, const char *format, va_list *ap)
{
	for (bool more = true; more; format++) {
		bool number = *format == '#';

		vfm_html_addf(b, "<%s%s>", tag, number ? " class=num" : "");
		if (!strncmp(format, "=%f", 3)) {
			add_bar(b, va_arg(*ap, double));
			format += 3;
		} else {
			format = add_format(b, format + number, true, ap);
		}
		more = *format == '|';
	}
}

void vfm_html_table(struct vfm_buf *b, const char *headings, ...)
{
	va_list ap;

	vfm_buf_adds(b, "<div class=wide><table>\n<tr>");
	va_start(ap, headings);
	add_cells(b, "th", headings, &ap);
	va_end(ap);
}

void vfm_html_heads(struct vfm_buf *b, const char *headings, ...)
{
	va_list ap;

	va_start(ap, headings);
	add_cells(b, "th", headings, &ap);
	va_end(ap);
}

void vfm_html_row(struct vfm_buf *b, const char *cells, ...)
{
	va_list ap;

	vfm_buf_adds(b, "\n<tr>");
	va_start(ap, cells);
	add_cells(b, "td", cells, &ap);
	va_end(ap);
}

void vfm_html_cells(struct vfm_buf *b, const char *cells, ...)
{
	va_list ap;

	va_start(ap, cells);
	add_cells(b, "td", cells, &ap);
	va_end(ap);
}

void vfm_html_table_end(struct vfm_buf *b)
{
	vfm_buf_adds(b, "\n</table></div>\n");
}

static void add_data_url(struct vfm_buf *b, const char *type, const void *data, size_t len)
{
	unsigned char *text = vfm_malloc((len + 2) / 3 * 4 + 1);

	EVP_EncodeBlock(text, data, (int)len);
	vfm_html_addf(b, "'data:image/%s;base64,%s'", type, (const char *)text);
	free(text);
}

int vfm_html_picture(struct vfm_buf *b, const uint8_t *rgb, int width, int height, const char *alt, struct vfm_err *err)
{
	struct vfm_buf png = {0};
	int rc = vfm_png_encode(&png, rgb, width, height, err);

	if (rc >= 0) {
		vfm_html_addf(b, "<img alt='%s' src=", alt);
		add_data_url(b, "png", png.data, png.len);
		vfm_buf_adds(b, ">");
	}
	vfm_buf_release(&png);
	return rc;
}

void vfm_html_jpeg(struct vfm_buf *b, const void *jpeg, size_t len, int width, int height)
{
	vfm_html_addf(b, "<img alt='' width=%d height=%d src=", width, height);
	add_data_url(b, "jpeg", jpeg, len);
	vfm_buf_adds(b, ">");
}

/* ---- colours ---- */

void vfm_html_palette(struct vfm_buf *b)
{
	static const char *const colours[VFM_COLOURS] = {"#2f6fde", "#e0662b", "#2b9a5b", "#a24fd0", "#a3811d",
		"#1a9fb3", "#d6396f", "#6f8f2f", "#5b5fc7", "#7b8794", "#b4bac4", "#f3c6ae"};

	for (int i = 0; i < VFM_COLOURS; i++)
		vfm_html_addf(b, ".c%d{stroke:%s}svg .a%d{fill:%s;stroke:none}", i, colours[i], i, colours[i]);
	vfm_buf_adds(b, "\n");
}

void vfm_html_swatch(struct vfm_buf *b, char kind, int colour)
{
	if (kind == 'a')
		vfm_html_addf(b,
			"<svg class=swatch viewBox='0 0 22 10'><path class=a%d d='M0 0H22V10H0z'/></svg>&nbsp;",
			colour % VFM_COLOURS);
	else
		vfm_html_addf(b, "<svg class=swatch viewBox='0 0 22 10'><path class='c%d%s' d='M1 5H21'/></svg>&nbsp;",
			colour % VFM_COLOURS_CURVES, colour / VFM_COLOURS_CURVES % 2 ? " dashed" : "");
}
