// The types of tekil.mjs. What it does, and why, is told in doc.go.

/** open: nothing is in doubt; unknown: something was sent and is not confirmed; expired: too old to be asked about; done: spent. */
export type State = "open" | "unknown" | "expired" | "done";

/**
 * What became of a request.
 * - done: a success, first or replayed. The key is thrown away (send) or the call is confirmed (call).
 * - accepted: 202. It is being worked on and is no success; the key stays.
 * - refused: not accepted; errors says which fields. The key stays; final says that only startOver() leads on.
 * - conflict: the key was received with another payload, or another 409. The key stays, and nothing is sent again by itself.
 * - in-progress: an attempt is at work. The key stays.
 * - unknown: no answer, a time-out, a redirect or a fault of the server. The key stays.
 * - blocked: as unknown, for a request to another origin: the network, or CORS/preflight.
 * - busy: 429, nothing was done. The key stays.
 * - expired: it was sent too long ago to be asked about, or the server has forgotten it. The key stays, and nothing is sent before startOver().
 */
export type Kind = "done" | "accepted" | "refused" | "conflict" | "in-progress" | "unknown" | "blocked" | "busy" | "expired";

/** The body of an error answer: problem details (RFC 9457) of the HTTP edge, or whatever else has come. */
export interface Problem {
  title?: string;
  status?: number;
  detail?: string;
  code?: string;
  retry?: "same-key" | "new-key" | "none";
  request_id?: string;
  operation_id?: string;
  errors?: { path: string; rule: string; message: string }[];
  data?: unknown;
}

/** Never holds the key. */
export interface Outcome<T = unknown> {
  kind: Kind;
  /** kind is "done". */
  ok: boolean;
  /** For the person; see messages. */
  message: string;
  /** How many requests were sent; 0 if none. */
  tries: number;
  /** The payload is another one than that of an attempt whose outcome is not known. */
  edited: boolean;
  /** What the person may quote, such as the order's number: what options.reference makes of data. */
  reference?: string | number;
  /** The status of the last answer, if there was one. */
  status?: number;
  /** The body of the last answer: what its JSON says, else its text. */
  data?: T;
  /** The work was done by an earlier attempt. */
  replayed?: boolean;
  problem?: Problem;
  /** The texts about each field, by its path. */
  errors?: Record<string, string[]>;
  /** The answer is final for this key. */
  final?: boolean;
  requestId?: string;
  operationId?: string;
  location?: string;
  retryAfterMs?: number;
  /** For the developer, where there was no answer that counts. */
  error?: Error;
}

/** What is happening. outcome is there when a request has ended. failed: of enhance(), nothing was sent by this press. */
export interface Told {
  state: "sending" | "edited" | "failed" | Kind | State;
  message: string;
  outcome?: Outcome;
}

export type Messages = Record<"sending" | "edited" | "again" | "open" | "failed" | Kind, string | ((outcome?: Outcome) => string)>;

/** Retries of one send() or call(), all with the same key and the same bytes. */
export interface Limits {
  /** Requests in all, 3 by default; 1 is no retry. */
  tries?: number;
  /** How long one may take, 20,000 by default. */
  perTryTimeoutMs?: number;
  /** How long all may take with the pauses between them, 60,000 by default. */
  totalMs?: number;
  /** Ask again after a 202 as well, within the same limits. False by default. */
  accepted?: boolean;
}

export interface OpenOptions {
  /** The form's name, the same at every opening. */
  id: string;
  /** The id of the draft (the cart), made once by whoever makes drafts. The key is derived from it. */
  draft?: string;
  /** Which intent of the draft at least, 1 by default; for a draft that keeps Form.generation. */
  generation?: number;
  /** For how many hours a key is taken up again, 24 by default. */
  ttlHours?: number;
  retry?: Limits;
  /** Texts instead of the default ones. What a text, reference or onState throws is reported (reportError) and changes nothing. */
  messages?: Partial<Messages>;
  /** What the person may quote, out of the result. */
  reference?: (data: any) => string | number | undefined;
  onState?: (told: Told) => void;
}

/** As for fetch. An object that fetch does not take is sent as JSON. The method is POST by default, and redirect is "manual". */
export interface SendInit extends Omit<RequestInit, "body"> {
  body?: BodyInit | object | null;
}

export interface Form {
  /** Sends the one request of a form with the form's own key. While it is under way, another one is the same one. */
  send<T = unknown>(url: string | URL, init?: SendInit): Promise<Outcome<T>>;
  /**
   * Sends one of several requests; its key is derived from the form's, the method, the path and the label. While it is under way,
   * another one of them is the same one, and an error if its body is not the same.
   */
  call<T = unknown>(url: string | URL, init?: SendInit & { label?: string }): Promise<Outcome<T>>;
  /** Says that all calls have succeeded, and spends the form. Throws if one is under way, was refused or is not confirmed. */
  done(): void;
  /** Makes this new work, with a new key. It is the person's decision, and only theirs. */
  startOver(): void;
  /** A request is under way. */
  readonly busy: boolean;
  /** Which intent of the draft this is; rises by startOver(). */
  readonly generation: number;
  readonly state: State;
  /** What the person is to be told now, "" for nothing. */
  readonly notice: string;
}

export interface EnhanceOptions extends OpenOptions {
  /** The form's action by default. */
  url?: string | URL;
  /** The form's method by default, which must not be GET. */
  method?: string;
  headers?: HeadersInit;
  credentials?: RequestCredentials;
  /** Makes the body; by default the fields as a JSON object, with numbers for number inputs. */
  encode?: (form: HTMLFormElement, submitter: HTMLElement | null) => SendInit["body"];
  /** Shows the messages; made a live region if it is none. */
  status?: HTMLElement;
  /** A button that is shown where starting over is something to decide, and does it. */
  startOver?: HTMLElement;
}

export interface Enhanced {
  /** The intent that the next submit sends. */
  readonly form: Form;
  startOver(): void;
  /** Gives the form back to the browser. */
  release(): void;
}

/** Opens a form: takes up its key, or makes one. Throws where a key could not be kept. */
export function open(options: OpenOptions): Form;

/** Makes a form of the page send its fields by open(). Says what happens by the event "tekil:state", whose detail is Told. */
export function enhance(element: HTMLFormElement, options: EnhanceOptions): Enhanced;

/** Makes a key of parts, the same in every language. */
export function derive(...parts: string[]): Promise<string>;

/** What the person is told by default. */
export const messages: Readonly<Messages>;
