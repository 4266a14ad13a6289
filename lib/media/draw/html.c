#include "media/draw/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "media/draw/image.h"
#include "media/draw/png.h"

static const char style[] =
	":root{--ink:#1c2430;--dim:#667085;--line:#e4e7ec;--soft:#f6f7f9;--blue:#2f6fde;--pale:#cfe0fb;--red:#c8372d;"
	"--amber:#b7791f;--green:#2b8a57;--page:#fff}\n"
	"@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#98a2b3;--line:#2d3543;--soft:#1b212c;--blue:#"
	"6fa0f5;"
	"--pale:#27406b;--red:#f0766c;--amber:#e0a94a;--green:#5cc48d;--page:#12161d}}\n"
	"*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:28px 24px 60px;background:var(--page);"
	"color:var(--ink);overflow-wrap:break-word;font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
	"Sans',sans-serif}\n"
	"h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:38px 0 12px;"
	"padding-bottom:6px;border-bottom:1px solid var(--line)}h3{font-size:14px;margin:0 0 6px}\n"
	".dim{color:var(--dim)}.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
	"table{border-collapse:collapse;width:100%}th{font-weight:600;color:var(--dim);font-size:13px;text-align:left}"
	"th.num{text-align:right}td,th{padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top;"
	"overflow-wrap:anywhere}\n"
	".cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin:18px 0}"
	".card{background:var(--soft);border:1px solid var(--line);border-radius:8px;padding:10px 14px}"
	".card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}\n"
	".grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:16px;align-items:start}"
	".box{border:1px solid var(--line);border-radius:8px;padding:12px 14px;background:var(--soft)}\n"
	".bar{height:9px;margin-top:7px;border-radius:5px;background:var(--line);overflow:hidden;min-width:80px}"
	".bar i{display:block;height:100%;background:var(--blue)}.bar i.red{background:var(--red)}"
	".bar i.amber{background:var(--amber)}.bar i.green{background:var(--green)}\n"
	".state{font-weight:600}.runs{color:var(--blue)}.done{color:var(--green)}.stopped{color:var(--amber)}"
	".failed{color:var(--red)}\n"
	"svg{display:block;width:100%;height:auto}svg rect{fill:var(--blue)}svg text{fill:var(--dim);font-size:10px}"
	"svg line{stroke:var(--line)}\n"
	"figure{margin:0;min-width:0;overflow-wrap:anywhere}figure p{margin:0;font-size:12px}"
	"figcaption{font-size:12px;color:var(--dim);margin-top:6px}figcaption span{white-space:nowrap}"
	"img,figure p.failed,figure p.none{display:block;width:100%;height:130px;object-fit:contain;border-radius:4px;"
	"background:var(--line)}figure p.failed,figure p.none{padding:8px;overflow:hidden}\n"
	".shots{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:12px}"
	".pair{display:grid;grid-template-columns:1fr 1fr;gap:12px}blockquote{margin:0 0 4px;padding:6px 12px;"
	"border-left:3px solid var(--pale);overflow-wrap:anywhere}\n"
	".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(460px,100%),1fr));gap:16px}"
	".chart h3{font-size:15px;margin:0}.chart h3 span{font-weight:400;font-size:12px}"
	".legend{margin:2px 0 6px;font-size:12px;color:var(--dim);overflow-wrap:anywhere}"
	".legend span{margin-right:10px}.legend b{color:var(--ink);font-variant-numeric:tabular-nums}"
	".rows td,.rows th{overflow-wrap:normal;padding:4px;font-size:11px}.rows th{white-space:normal;"
	"vertical-align:bottom}.rows td.long{overflow-wrap:anywhere;min-width:84px}"
	".sections>h3{margin:30px 0 8px;font-size:16px}"
	/* as wide as the window, beyond the margins of the page */
	".full{width:calc(100vw - 64px);margin-left:calc(50% - 50vw + 32px)}"
	/* shadows at the edges behind which a wide table goes on */
	".wide{overflow-x:auto;background:linear-gradient(to right,var(--page) 30%,transparent) left/36px 100% "
	"no-repeat local,linear-gradient(to left,var(--page) 30%,transparent) right/36px 100% no-repeat local,"
	"linear-gradient(to right,#98a2b3a0,transparent) left/10px 100% no-repeat scroll,"
	"linear-gradient(to left,#98a2b3a0,transparent) right/10px 100% no-repeat "
	"scroll}summary{cursor:pointer;margin:12px 0}h3.run{margin:22px 0 0}p.row{margin:10px 0 "
	"4px;font-size:12px}a{color:var(--blue)}svg "
	"path{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
	"svg path.pale{stroke-width:1;opacity:.32}svg path.mark{stroke-width:1;stroke-dasharray:1 4;opacity:.8}"
	"svg path.dashed{stroke-dasharray:6 3}svg.swatch{display:inline-block;width:22px;height:10px;"
	"vertical-align:baseline}svg.swatch path{stroke-width:3}"
	".c0{stroke:var(--blue)}.c1{stroke:#e0662b}.c2{stroke:#2b9a5b}.c3{stroke:#a24fd0}.c4{stroke:#d6396f}"
	".c5{stroke:#a3811d}.c6{stroke:#1a9fb3}.c7{stroke:#7b8794}\n";

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

void vfm_html_text(struct vfm_buf *b, const char *text)
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

void vfm_html_count(struct vfm_buf *b, int64_t n)
{
	char digits[32];
	int len = snprintf(digits, sizeof(digits), "%lld", (long long)n), i = 0;

	for (; i < len; i++) {
		if (i && (len - i) % 3 == 0 && digits[i - 1] != '-')
			vfm_buf_adds(b, "&#8239;");
		vfm_buf_add(b, digits + i, 1);
	}
}

/* RFC 4648, section 4. */
static void add_base64(struct vfm_buf *b, const uint8_t *data, size_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < n; i += 3) {
		uint32_t x = (uint32_t)data[i] << 16 | (i + 1 < n ? (uint32_t)data[i + 1] << 8 : 0) |
			(i + 2 < n ? data[i + 2] : 0);
		char four[4] = {digits[x >> 18], digits[x >> 12 & 63], i + 1 < n ? digits[x >> 6 & 63] : '=',
			i + 2 < n ? digits[x & 63] : '='};

		vfm_buf_add(b, four, 4);
	}
}

void vfm_html_image(struct vfm_buf *b, const char *type, const void *data, size_t n, const char *alt)
{
	vfm_buf_adds(b, "<img alt=\"");
	vfm_html_text(b, alt);
	vfm_buf_addf(b, "\" src=\"data:%s;base64,", type);
	add_base64(b, data, n);
	vfm_buf_adds(b, "\">");
}

int vfm_html_picture(struct vfm_buf *b, const uint8_t *rgb, int width, int height, const char *alt, struct vfm_err *err)
{
	struct vfm_buf png = {0};
	int rc = vfm_png_encode(&png, rgb, width, height, err);

	if (rc >= 0) {
		vfm_buf_addf(b, "<img width=\"%d\" height=\"%d\" alt=\"", width, height);
		vfm_html_text(b, alt);
		vfm_buf_adds(b, "\" src=\"data:image/png;base64,");
		add_base64(b, (const uint8_t *)png.data, png.len);
		vfm_buf_adds(b, "\">");
	}
	vfm_buf_release(&png);
	return rc;
}

void vfm_html_bar(struct vfm_buf *b, double share, const char *kind)
{
	vfm_buf_addf(b, "<div class=\"bar\"><i class=\"%s\" style=\"width:%.1f%%\"></i></div>", kind,
		100 * fmin(1, fmax(0, share)));
}

void vfm_html_histogram(struct vfm_buf *b, const int64_t *counts, int n, double min, double max)
{
	const double width = 300.0 / n;
	int64_t most = 1;

	for (int i = 0; i < n; i++)
		most = counts[i] > most ? counts[i] : most;
	vfm_buf_adds(b, "<svg viewBox=\"0 0 300 96\" role=\"img\">");
	for (int i = 0; i < n; i++) {
		double h = counts[i] ? fmax(1, 78.0 * (double)counts[i] / (double)most) : 0;

		if (counts[i])
			vfm_buf_addf(b, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>", width * i,
				80 - h, fmax(0.5, width - 1), h);
	}
	vfm_buf_addf(b,
		"<line x1=\"0\" y1=\"80.5\" x2=\"300\" y2=\"80.5\"/><text x=\"0\" y=\"93\">%.4g</text>"
		"<text x=\"300\" y=\"93\" text-anchor=\"end\">%.4g</text></svg>",
		min, max);
}

void vfm_html_begin(struct vfm_buf *b, const char *title, int refresh_s)
{
	vfm_buf_adds(b,
		"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
		"style-src 'unsafe-inline'\">\n"
		"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n");
	if (refresh_s > 0)
		vfm_buf_addf(b, "<meta http-equiv=\"refresh\" content=\"%d\">\n", refresh_s);
	vfm_buf_adds(b, "<title>");
	vfm_html_text(b, title);
	vfm_buf_adds(b, "</title>\n<style>\n");
	vfm_buf_adds(b, style);
	vfm_buf_adds(b, "</style></head>\n<body>\n<h1>");
	vfm_html_text(b, title);
	vfm_buf_adds(b, "</h1>\n");
}

void vfm_html_end(struct vfm_buf *b)
{
	vfm_buf_adds(b, "</body></html>\n");
}

void vfm_html_area_swatch(struct vfm_buf *b, const char *colour)
{
	vfm_buf_addf(b,
		"<svg class=\"swatch\" viewBox=\"0 0 22 10\"><rect width=\"22\" height=\"10\" "
		"style=\"fill:%s\"/></svg> ",
		colour);
}
