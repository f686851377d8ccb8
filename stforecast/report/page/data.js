// The numbers of the page, unpacked.

async function unpack(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i); // Uint8Array.from takes 0.1 s.
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function unpackText(id) {
  return new TextDecoder().decode(await unpack(id));
}

const MISSING = 4095;

class Numbers {
  constructor(tasks, scales, block) {
    Object.assign(this, { tasks, scales, block });
  }

  static async read() {
    const [text, block] = [await unpackText("numbers"), await unpack("arrays")];
    const { tasks, scales } = JSON.parse(text);
    return new Numbers(tasks, scales, block);
  }

  // All values of an array, by cell.
  floats(place) {
    return new Float32Array(this.block, place.at, place.shape.reduce((a, b) => a * b, 1));
  }

  // The values of one row; null where there is none.
  row(place, i) {
    const [rows, length] = place.shape;
    const [high, low8] = [0, 1].map((plane) =>
      new Uint8Array(this.block, place.at + (plane * rows + i) * length, length));
    const low = this.floats(place.low)[i];
    const step = this.floats(place.step)[i];
    return Array.from(high, (bits, k) => {
      const level = 256 * bits + low8[k];
      return level === MISSING ? null : low + step * level;
    });
  }
}

// A number with three digits; a dash if it is not one. Of a "log" it is one in a power of ten.
function short(value, share = false) {
  if (value === null || !Number.isFinite(value)) return "-";
  if (share === "log") return `one in ${short(Number((10 ** value).toPrecision(2)))}`;
  if (share) return `${(100 * value).toFixed(1)} %`;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

function known(values) {
  return Array.from(values).filter(Number.isFinite).sort((a, b) => a - b);
}

function quantile(sorted, share) {
  return sorted[Math.round(share * (sorted.length - 1))];
}
