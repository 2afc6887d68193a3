// Search from a folder: browsers refuse workers to pages of file:, so a hidden frame takes the part.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, address), { once: true });
      document.body.append(frame);
    }

    start(inside, address) {
      // What the script sends goes to whoever made this worker.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        this.inside = inside;
        this.waiting.forEach((data) => this.postMessage(data));
        this.waiting = [];
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (!this.inside) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
